"""The server's part of secure aggregation with real nodes; see `fedsat.flower.secure_messages`."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import torch

from fedsat.errors import SkippedRoundError, TrainingError
from fedsat.flower.checks import RefusedError
from fedsat.flower.members import Members
from fedsat.flower.messages import Train, Trained
from fedsat.flower.records import Message
from fedsat.flower.run_spec import RunSpec
from fedsat.flower.secure_messages import Introduce, Introduced, Reveal, Revealed, Share, Shared, bound_of
from fedsat.rounds.secure import SEALED
from fedsat.secure.fixed import Words
from fedsat.secure.protocol import Introduction, Round, SecureError
from fedsat.secure.shares import FEWEST, PEERS, SIZE

STAGE = "secure aggregation"
LARGEST = 2**16 + 2**10 * (PEERS + 1)
"""Bytes of a reply with keys or shares."""

Kind = TypeVar("Kind", bound=Message)


@dataclass
class Keys:
    """What the clients of a round have exchanged before they train."""

    round: Round
    sealed: dict[int, dict[int, bytes]]
    """The encrypted shares of each client, by the peer that can read them."""

    def inbox(self, client: int) -> dict[int, bytes]:
        """Return the shares that a client's peers encrypted for it."""
        return {sender: sent[client] for sender, sent in self.sealed.items() if client in sent}


@dataclass(frozen=True)
class SecureRound:
    """One round of secure aggregation."""

    members: Members
    run: RunSpec
    number: int

    def exchange(self, messages: Mapping[int, Train], needed: int, retries: int, timeout: float) -> Keys:
        """Let the clients exchange keys and shares for these messages, and repeat it until enough of them do."""
        bound, repeated = bound_of(next(iter(messages.values()))), set[int]()
        for attempt in range(retries + 1):
            if attempt:
                self.members.repeat()
                self.members.wait_for(set(messages), timeout)
            keys = self._exchange(messages, bound, repeated)
            if keys is not None and len(keys.sealed) >= needed:
                return keys
        if len(repeated) + (0 if keys is None else len(keys.sealed)) >= needed:
            raise SkippedRoundError("clients sent their updates before the server started again")
        ready = 0 if keys is None else len(keys.sealed)
        raise TrainingError(
            f"round {self.number}: {ready} of {len(messages)} sampled clients exchanged keys for the secure aggregation"
            f", but {needed} are needed (--min-fraction); {self.members.reasons(messages)}"
        )

    def _exchange(self, clients: Iterable[int], bound: bytes, repeated: set[int]) -> Keys | None:
        """Ask for keys and shares once; `repeated` collects clients that have sent an update of this round before."""

        def introduced_by(client: int, reply: Introduced) -> Introduction:
            if reply.masked >= self.number:
                repeated.add(client)
                raise RefusedError(f"it has sent an update of round {reply.masked}, and sends no other one")
            return reply.keys

        nonce = secrets.token_hex(16)
        greetings = {client: Introduce(self.run, client, self.number, nonce) for client in clients}
        introduced = self.members.request(STAGE, greetings, Introduced, introduced_by, LARGEST)
        if len(introduced) < FEWEST:
            return None  # a sum of fewer would reveal too much
        round_ = Round(introduced, next(iter(greetings.values())).context, bound)
        asked = {client: Share(self.run, client, self._of(introduced, peers)) for client, peers in round_.peers.items()}

        def checked(client: int, reply: Shared) -> dict[int, bytes]:
            if reply.sealed.keys() != set(round_.peers[client]):  # a peer without its share would not mask the pair
                raise RefusedError("shares: not one for each of its peers")
            return sized(reply.sealed, round_.peers[client], SEALED)

        return Keys(round_, self.members.request(STAGE, asked, Shared, checked, LARGEST))

    def total(self, keys: Keys, vectors: Mapping[int, Words]) -> Words:
        """Return the sum of the vectors, which the clients' shares make readable."""
        asked = {
            client: Reveal(self.run, client, tuple(peer for peer in keys.round.peers[client] if peer in vectors))
            for client in vectors
        }

        def checked(client: int, reply: Revealed) -> dict[int, bytes]:
            return sized(reply.shares, keys.round.peers[client], SIZE)

        shares = self.members.request(STAGE, asked, Revealed, checked, LARGEST)
        if not vectors:
            raise SecureError("secure aggregation: no client sent its update")
        return keys.round.total(vectors, keys.sealed, shares)

    @staticmethod
    def _of(introduced: Mapping[int, Introduction], peers: Iterable[int]) -> dict[int, Introduction]:
        return {peer: introduced[peer] for peer in peers}


def check_masked(reply: Trained, values: int, samples: int, steps: int) -> None:
    """Refuse a masked update of another size, or from other samples and steps. It cannot be read."""
    words = reply.masked.get("words")
    if reply.model.params or reply.uploads or words is None:
        raise RefusedError("update: it is not masked")
    if words.shape != (values,) or words.dtype != torch.int64:
        raise RefusedError(f"update: {words.dtype} {list(words.shape)}, not {values:,} words of 64 bits")
    if (reply.steps, reply.samples) != (steps, samples):
        raise RefusedError(
            f"it reports {reply.steps} steps on {reply.samples} samples, but was asked for {steps} on its {samples}"
        )


def sized(parts: dict[int, bytes], peers: Iterable[int], size: int) -> dict[int, bytes]:
    """Return a client's parts for its peers; refuse others, or of another size."""
    if not parts.keys() <= set(peers) or any(len(part) != size for part in parts.values()):
        raise RefusedError("shares: not those of its peers, or of another size")
    return parts
