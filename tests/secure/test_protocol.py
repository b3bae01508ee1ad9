"""Secure aggregation between parties in this process: sums, dropouts at each phase, and what is refused."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

pytest.importorskip("cryptography", reason="cryptography is not installed: pip install 'fedsat[flower]'")

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedsat.secure import protocol as module
from fedsat.secure.fixed import FRACTION, LARGEST, Words, decode, encode
from fedsat.secure.protocol import Introduction, Party, Round, SecureError, graph, public_identity
from fedsat.secure.shares import join, split, threshold_of

SIZE = 7


def vectors_of(clients: Iterable[int]) -> dict[int, np.ndarray]:
    return {client: np.random.default_rng(client).normal(size=SIZE) for client in clients}


class Exchange:
    """All parties and the server, with clients that stop answering after a phase."""

    def __init__(self, clients: Iterable[int] = range(9)) -> None:
        self.context = b"run 1, round 1"
        self.parties = {client: Party(client, self.context) for client in clients}
        self.bounds = dict.fromkeys(self.parties, b"same model")
        self.masked: dict[int, Words] = {}

    def run(self, *, no_keys: set[int] = frozenset(), no_shares: set[int] = frozenset(),  # type: ignore[assignment]
            no_vector: set[int] = frozenset(), no_reveal: set[int] = frozenset()) -> np.ndarray:  # type: ignore[assignment]  # fmt: skip
        introductions = {k: party.introduce() for k, party in self.parties.items() if k not in no_keys}
        server = Round(introductions, self.context, b"same model")
        shares = {
            k: self.parties[k].share({peer: introductions[peer] for peer in server.peers[k]})
            for k in introductions if k not in no_shares
        }  # fmt: skip
        vectors = vectors_of(self.parties)
        for k in shares:
            inbox = {sender: sent[k] for sender, sent in shares.items() if k in sent}
            if k not in no_vector:
                self.masked[k] = self.parties[k].mask(encode(vectors[k]), inbox, self.bounds[k])
        survivors = set(self.masked)
        revealed = {
            k: self.parties[k].reveal(survivors & set(server.peers[k])) for k in survivors if k not in no_reveal
        }
        return decode(server.total(self.masked, shares, revealed))


def expected(clients: Iterable[int]) -> np.ndarray:
    return np.sum(list(vectors_of(clients).values()), axis=0)


@pytest.mark.parametrize("count", [3, 4, 9])
def test_the_sum_is_that_of_the_vectors_within_rounding(count: int) -> None:
    found = Exchange(range(count)).run()
    assert np.abs(found - expected(range(count))).max() <= count * 2.0 ** -(FRACTION + 1)


def test_what_a_client_sends_looks_random() -> None:
    exchange = Exchange()
    exchange.run()
    vectors = vectors_of(range(9))
    for client, sent in exchange.masked.items():
        assert np.abs(decode(sent) - vectors[client]).min() > 1  # true numbers are below 5, random words up to 2^31
    part = np.add.reduce([exchange.masked[client] for client in range(8)])
    assert np.abs(decode(part) - expected(range(8))).min() > 1


@pytest.mark.parametrize("phase", ["no_keys", "no_shares", "no_vector", "no_reveal"])
def test_clients_may_drop_out_in_every_phase(phase: str) -> None:
    found = Exchange().run(**{phase: {2, 5}})  # type: ignore[arg-type]
    contributed = range(9) if phase == "no_reveal" else [k for k in range(9) if k not in (2, 5)]
    assert np.abs(found - expected(contributed)).max() < 1e-8


def test_clients_may_drop_out_in_several_phases() -> None:
    found = Exchange(range(12)).run(no_keys={0}, no_shares={1}, no_vector={2}, no_reveal={3})
    assert np.abs(found - expected(range(3, 12))).max() < 1e-8


@pytest.mark.parametrize("phase", ["no_shares", "no_vector", "no_reveal"])
def test_below_the_threshold_the_round_is_refused(phase: str) -> None:
    assert threshold_of(9) == 7
    with pytest.raises(SecureError, match=r"secure aggregation: .*(6 of 9|6 clients)"):
        Exchange().run(**{phase: {0, 1, 2}})  # type: ignore[arg-type]


def test_two_clients_are_too_few() -> None:
    with pytest.raises(SecureError, match="fewer than three clients"):
        Exchange(range(2)).run()


def test_clients_with_a_different_task_spoil_the_sum() -> None:
    """A server that sends a special model to one client learns nothing (Pasquini et al. 2022)."""
    exchange = Exchange()
    exchange.bounds[4] = b"special model"
    assert np.abs(exchange.run() - expected(range(9))).min() > 1


def introduced(count: int, context: bytes) -> tuple[dict[int, Party], dict[int, bytes], dict[int, Introduction]]:
    identities = {k: Ed25519PrivateKey.generate().private_bytes_raw() for k in range(count)}
    parties = {k: Party(k, context) for k in range(count)}
    known = {k: public_identity(identity) for k, identity in identities.items()}
    return parties, known, {k: party.introduce(identities[k]) for k, party in parties.items()}


def test_keys_that_their_owner_did_not_sign_are_refused() -> None:
    parties, known, introductions = introduced(4, b"round 1")
    assert parties[0].share(introductions, known).keys() == {0, 1, 2, 3}
    forged = replace(introductions[2], mask_key=Party(2, b"round 1").introduce().mask_key)  # a key of the server
    unsigned = replace(introductions[2], signature=b"")
    earlier = introduced(4, b"round 0")[2][2]
    for wrong in (forged, unsigned, earlier, introductions[3]):
        with pytest.raises(SecureError, match="the keys of client 2 are not signed by it"):
            parties[1].share({**introductions, 2: wrong}, known)
    with pytest.raises(SecureError, match="client 3 is not among the known members"):
        parties[1].share(introductions, {k: key for k, key in known.items() if k != 3})


def test_a_client_s_own_keys_cannot_be_replaced() -> None:
    parties, _, introductions = introduced(4, b"round 1")
    with pytest.raises(SecureError, match="not those of this client and round"):
        parties[1].share({**introductions, 1: introductions[2]})


def up_to_masks(count: int = 6) -> tuple[dict[int, Party], dict[int, Introduction], dict[int, dict[int, bytes]]]:
    parties, _, introductions = introduced(count, b"round 1")
    shares = {k: party.share(introductions) for k, party in parties.items()}
    return parties, introductions, shares


def test_changed_shares_are_refused() -> None:
    parties, _, shares = up_to_masks()
    inbox = {k: sent[0] for k, sent in shares.items()}
    with pytest.raises(SecureError, match="the shares of client 3 were changed"):
        parties[0].mask(encode(np.zeros(SIZE)), {**inbox, 3: shares[3][1]}, b"")


def test_a_client_reveals_one_secret_of_a_peer_and_only_once() -> None:
    parties, _, shares = up_to_masks()
    with pytest.raises(SecureError, match="after the vector is sent"):
        parties[0].reveal(range(6))
    parties[0].mask(encode(np.zeros(SIZE)), {k: sent[0] for k, sent in shares.items()}, b"")
    with pytest.raises(SecureError, match="only 4 of 6 clients sent their vectors, 5 are needed"):
        parties[0].reveal({0, 1, 2, 3})
    assert parties[0].reveal({0, 1, 2, 3, 4}).keys() == set(range(6))
    with pytest.raises(SecureError, match="revealed only once"):
        parties[0].reveal(range(6))
    with pytest.raises(SecureError, match="masked only once"):
        parties[0].mask(encode(np.zeros(SIZE)), {k: sent[0] for k, sent in shares.items()}, b"")


@pytest.mark.parametrize("survivors", [range(6), range(5)])
def test_wrong_shares_are_noticed(survivors: range) -> None:
    """Five of six shares are needed: one wrong share is left out if six are there, and spoils the round if not."""
    parties, introductions, shares = up_to_masks()
    server = Round(introductions, b"round 1", b"")
    masked = {
        k: parties[k].mask(encode(np.zeros(SIZE)), {sender: sent[k] for sender, sent in shares.items()}, b"")
        for k in survivors
    }
    revealed: dict[int, Mapping[int, bytes]] = {k: parties[k].reveal(survivors) for k in survivors}
    assert not decode(server.total(masked, shares, revealed)).any()
    for liar in survivors:
        wrong = {**revealed, liar: {**revealed[liar], 3: revealed[liar][2]}}
        if len(survivors) == 6:
            assert not decode(server.total(masked, shares, wrong)).any()
        else:
            with pytest.raises(SecureError, match="the shares of client 3 are wrong"):
                server.total(masked, shares, wrong)


def test_a_wrong_share_of_a_client_that_dropped_out_is_left_out() -> None:
    """Six of eight shares of its key are needed, and seven are there, one of them wrong."""
    parties, introductions, shares = up_to_masks(8)
    server, left = Round(introductions, b"round 1", b""), range(7)
    masked = {
        k: parties[k].mask(encode(np.zeros(SIZE)), {sender: sent[k] for sender, sent in shares.items()}, b"")
        for k in left
    }
    revealed: dict[int, Mapping[int, bytes]] = {k: parties[k].reveal(left) for k in left}
    wrong = {**revealed, 0: dict.fromkeys(range(8), bytes(66))}
    assert not decode(server.total(masked, shares, wrong)).any()


def test_shares_of_a_secret() -> None:
    """Any three of five shares give the secret; two fit every other secret as well, so they say nothing."""
    secret = b"\x00" + b"fedsat" * 5 + b"\xff"
    shares = split(secret, range(5), 3)
    for chosen in combinations(range(5), 3):
        assert join({k: shares[k] for k in chosen}, 32) == secret
    other = split(secret, range(5), 3)
    assert all(shares[k] != other[k] for k in shares)
    with pytest.raises(ValueError, match="do not belong to one secret"):
        join({0: shares[0], 1: shares[1], 2: other[2]}, 32)


def test_a_share_by_hand() -> None:
    """f(x) = s + a x: shares at x = 1 and 2 give 2 f(1) − f(2) = s."""
    shares = split(b"\x07", [0, 1], 2)
    one, two = (int.from_bytes(shares[k], "big") for k in (0, 1))
    assert (2 * one - two) % (2**521 - 1) == 7


def test_fixed_point_numbers() -> None:
    values = np.array([0.0, 1.5, -2.25, 2.0**-FRACTION, -LARGEST])
    assert decode(encode(values)).tolist() == values.tolist()
    assert encode(np.array([1.5]))[0] == 3 << (FRACTION - 1)
    assert decode(encode(values) + encode(-values)).tolist() == [0.0] * 5
    for bad in (np.nan, np.inf, 2 * LARGEST):
        with pytest.raises(ValueError, match="not finite, or above"):
            encode(np.array([bad]))


def test_large_rounds_use_a_sparse_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PEERS", 6)
    peers = graph(list(range(20)))
    assert all(len(set(own)) == 7 and client in own for client, own in peers.items())
    assert all(client in peers[other] for client, own in peers.items() for other in own)
    found = Exchange(range(20)).run(no_vector={3}, no_reveal={11})
    assert np.abs(found - expected(k for k in range(20) if k != 3)).max() < 1e-8
