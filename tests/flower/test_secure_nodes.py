"""Secure aggregation on real nodes: the same as in a simulation, with dropouts, and what nodes refuse."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import fedsat
from fedsat.experiment import Run
from tests.flower.test_equality import assert_same, federate, nodes, settings
from tests.support.faulty_nodes import LENIENT, Fault, FaultyNodes
from tests.support.federations import furthest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedsat[flower]'")

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from flwr.app import RecordDict

from fedsat.errors import TrainingError
from fedsat.flower.agreement import Agreement
from fedsat.flower.in_process import FIRST_NODE
from fedsat.flower.memory import Memory
from fedsat.flower.messages import Refused, Train, Trained
from fedsat.flower.records import Stamp
from fedsat.flower.secure_messages import Introduce, Reveal, Share, Shared
from fedsat.flower.server import prepare
from fedsat.flower.terms import Terms
from fedsat.flower.transport import Request

STEPS = [Introduce.kind, Share.kind, Train.kind, Reveal.kind]
FAST = Terms(timeout=0.3, wait=1, retries=0)


def silent_at(kind: str, *rounds: int) -> Fault:
    return lambda request, reply: None if request.kind == kind and request.round in rounds else reply


def table_of(folder: Path, **others: Any) -> dict[str, Any]:
    return settings(folder, **{"algorithm": "fedavg", "secure_aggregation": True, "per_round": 4, **others})


@pytest.mark.parametrize(
    ("method", "beta"),
    # Sizes are more alike for FedSat, whose limit on the aggregate needs single updates: none comes near it.
    [("fedavg", 0.7), ("feddyn", 0.7), ({"name": "fedsat", "weighting": "samples"}, 10.0)],
)
def test_it_equals_the_simulation(method: Any, beta: float, clouds: Path) -> None:
    table = table_of(clouds, algorithm=method, partition={"name": "quantity", "beta": beta})
    grid = FaultyNodes(*nodes(clouds))
    together = federate(grid, fedsat.configure(**table))
    assert_same(together, fedsat.run(**table))
    assert {kind for _, kind in grid.requests} >= set(STEPS)
    plain = fedsat.run(**{**table, "secure_aggregation": False})
    for name, tensor in plain.model.params.items():
        torch.testing.assert_close(together.model.params[name], tensor, rtol=1e-5, atol=1e-6)


def test_clients_that_evaluate_only_themselves_scale_their_updates(clouds: Path) -> None:
    """As in the simulation; no counts leave the nodes, and nobody evaluates anything as a worker."""
    table = table_of(clouds, algorithm="fedsat", workers=1, partition={"name": "quantity", "beta": 10.0})
    grid, replies = FaultyNodes(*nodes(clouds)), list[Trained]()

    def watch(request: Request, reply: RecordDict) -> RecordDict:
        if request.kind == Train.kind:
            replies.append(Trained.unpack(reply))
        return reply

    grid.faults = dict.fromkeys(grid.contexts, watch)
    together, alone = federate(grid, fedsat.configure(**table)), fedsat.run(**table)
    assert_same(together, alone)
    assert not any(reply.counts for reply in replies)
    assert "evaluate.worker" not in {kind for _, kind in grid.requests}
    uniform = fedsat.run(**{**table, "algorithm": {"name": "fedsat", "weighting": "uniform"}})
    assert furthest(alone.model.params, uniform.model.params) > 1e-4


def test_updates_leave_nodes_only_under_masks(clouds: Path) -> None:
    """What a client sends in two federations with the same seed has nothing in common."""
    seen: list[list[Trained]] = []
    for _ in range(2):
        replies: list[Trained] = []

        def watch(request: Request, reply: RecordDict, replies: list[Trained] = replies) -> RecordDict:
            if request.kind == Train.kind:
                replies.append(Trained.unpack(reply))
            return reply

        grid = FaultyNodes(*nodes(clouds))
        grid.faults = dict.fromkeys(grid.contexts, watch)
        federate(grid, fedsat.configure(**table_of(clouds, rounds=1)))
        seen.append(replies)
    for one, other in zip(*seen, strict=True):
        assert (one.model.params, one.uploads, one.loss, one.counts) == ({}, {}, 0.0, {})
        assert not bool((one.masked["words"] == other.masked["words"]).any())


@pytest.mark.parametrize("kind", STEPS)
def test_a_client_that_drops_out_at_any_step_does_not_end_the_round(kind: str, clouds: Path) -> None:
    table = table_of(clouds)
    grid = FaultyNodes(*nodes(clouds))
    sampled = fedsat.run(**table).records[0].clients
    grid.faults[FIRST_NODE + sampled[1]] = silent_at(kind, 1)
    run = federate(grid, fedsat.configure(**table), FAST)
    # A vector that was sent is part of the sum, although its client reveals no shares afterwards.
    left = sampled if kind == Reveal.kind else [client for client in sampled if client != sampled[1]]
    assert run.records[0].clients == left
    other = FaultyNodes(*nodes(clouds))
    if kind != Reveal.kind:
        other.faults[FIRST_NODE + sampled[1]] = silent_at(Train.kind, 1)
    plain = federate(other, fedsat.configure(**{**table, "secure_aggregation": False}), FAST)
    assert [line.clients for line in run.records] == [line.clients for line in plain.records]
    for name, tensor in plain.model.params.items():
        torch.testing.assert_close(run.model.params[name], tensor, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", [Train.kind, Reveal.kind])
def test_a_round_is_skipped_if_more_than_a_third_drop_out(kind: str, clouds: Path) -> None:
    table = table_of(clouds)
    sampled = fedsat.run(**table).records[0].clients
    grid = FaultyNodes(*nodes(clouds))
    for client in sampled[:2]:
        grid.faults[FIRST_NODE + client] = silent_at(kind, 1)
    run = federate(grid, fedsat.configure(**table), FAST)
    assert [len(line.clients) for line in run.records] == [0, 4, 4]
    assert "the round is skipped: secure aggregation" in str(run.records[0].left_out)


def test_a_client_that_withholds_a_share_is_left_out(clouds: Path) -> None:
    """Otherwise, its mask with one peer would not cancel, and the sum would be random."""
    table = table_of(clouds, rounds=1)
    first, second = fedsat.run(**table).records[0].clients[:2]

    def withhold(request: Request, reply: RecordDict) -> RecordDict:
        stamp = Stamp.of(reply)
        if request.kind == Share.kind and stamp is not None:
            sealed = Shared.unpack(reply).sealed
            reply = Shared({peer: part for peer, part in sealed.items() if peer != second}).pack()
            stamp.put(reply)
        return reply

    grid, other = FaultyNodes(*nodes(clouds)), FaultyNodes(*nodes(clouds))
    grid.faults[FIRST_NODE + first] = withhold
    other.faults[FIRST_NODE + first] = silent_at(Share.kind, 1)
    run, without = (federate(each, fedsat.configure(**table), FAST) for each in (grid, other))
    assert "shares: not one for each of its peers" in str(run.records[0].left_out)
    assert run.records[0].clients == without.records[0].clients
    for name, tensor in without.model.params.items():
        torch.testing.assert_close(run.model.params[name], tensor)


@pytest.mark.parametrize(("fraction", "left"), [(0.75, 3), (1.0, 0)])
def test_a_round_is_skipped_below_the_min_fraction(fraction: float, left: int, clouds: Path) -> None:
    """Three of four clients send an update: enough for the protocol, but not for `min_fraction` 1."""
    table = table_of(clouds, rounds=1)
    grid = FaultyNodes(*nodes(clouds))
    grid.faults[FIRST_NODE + fedsat.run(**table).records[0].clients[1]] = silent_at(Train.kind, 1)
    run = federate(grid, fedsat.configure(**table), replace(FAST, min_fraction=fraction))
    assert len(run.records[0].clients) == left
    asked = Reveal.kind in {kind for _, kind in grid.requests}
    assert asked == bool(left)  # nobody helps to read a sum that is not used
    why = "the round is skipped: 3 of 4 clients responded, but 4 are needed (--min-fraction)"
    assert (why in str(run.records[0].left_out)) == (left == 0)


def test_too_few_keys_are_asked_for_again(clouds: Path) -> None:
    table = table_of(clouds, rounds=1)
    grid = FaultyNodes(*nodes(clouds))
    left: dict[int, int] = dict.fromkeys(grid.contexts, 1)

    def once(request: Request, reply: RecordDict) -> RecordDict | None:
        if request.kind == Share.kind and left[request.node]:
            left[request.node] -= 1
            return None
        return reply

    grid.faults = dict.fromkeys(grid.contexts, once)
    run = federate(grid, fedsat.configure(**table), replace(FAST, retries=1))
    assert len(run.records[0].clients) == 4
    grid.faults = dict.fromkeys(grid.contexts, silent_at(Introduce.kind, 1))
    with pytest.raises(TrainingError, match="0 of 4 sampled clients exchanged keys for the secure aggregation, but 3"):
        federate(grid, fedsat.configure(**table), FAST)


def prepared(clouds: Path, *configs: dict[str, Any], **others: Any) -> tuple[FaultyNodes, Run]:
    grid = FaultyNodes(*(configs or nodes(clouds)))
    return grid, prepare(grid, fedsat.configure(**table_of(clouds, **others)), FAST)


def refusal(grid: FaultyNodes, request: Request) -> str:
    reply = grid.reply(request)
    assert isinstance(reply, RecordDict)
    return Refused.unpack(reply).why


def test_a_node_sends_one_masked_update_in_a_round(clouds: Path) -> None:
    """Two sums over different clients would reveal the update of the one that is only in one of them."""
    grid, run = prepared(clouds)
    run.run_round()
    node = grid.last[Train.kind].node
    assert "it has sent an update of round 1; a second sum could" in refusal(grid, grid.last[Train.kind])
    Memory.within(grid.contexts[node].state).reset()  # the server greets the node again
    assert "it has sent an update of round 1; a second sum could" in refusal(grid, grid.last[Train.kind])


def test_a_server_that_starts_again_skips_the_rounds_of_which_it_has_sums(clouds: Path) -> None:
    grid, run = prepared(clouds)
    run.run_round()
    again = prepare(grid, run.setup.config, FAST)
    assert [len(again.run_round().clients) for _ in range(3)] == [0, 4, 4]
    assert "it has sent an update of round 1, and sends no other one" in str(again.records[0].left_out)


def test_a_node_reveals_shares_only_once(clouds: Path) -> None:
    grid, run = prepared(clouds)
    run.run_round()
    assert "the node has no secrets of this round" in refusal(grid, grid.last[Reveal.kind])


def test_a_special_model_for_one_client_leaves_random_numbers(clouds: Path) -> None:
    table = table_of(clouds, rounds=1)
    victim = FIRST_NODE + fedsat.run(**table).records[0].clients[0]

    class Server(FaultyNodes):
        def reply(self, request: Request) -> Any:
            if request.kind == Train.kind and request.node == victim:
                train = Train.unpack(request.content)
                name = next(iter(train.model.params))
                train.model.params[name][0] += 1
                content, stamp = train.pack(), Stamp.of(request.content)
                assert stamp is not None
                stamp.put(content)
                request = replace(request, content=content)
            return super().reply(request)

    run = prepare(Server(*nodes(clouds)), fedsat.configure(**table), FAST)
    before = run.training.server.model.params
    run.run_round()
    moved = max(float((run.training.server.model.params[name] - before[name]).abs().max()) for name in before)
    assert moved > 1e5


def test_the_server_may_not_ask_for_counts(clouds: Path) -> None:
    grid, run = prepared(clouds)
    run.run_round()
    request = grid.last[Train.kind]
    asked = replace(Train.unpack(request.content), count=True, round=2)
    assert "count is true, but the run has secure aggregation" in refusal(grid, replace(request, content=asked.pack()))


def agreement(folder: Path, number: int, lines: str) -> str:
    path = folder / f"agreement-{number}.toml"
    path.write_text(LENIENT.read_text() + lines)
    return str(path)


def test_an_agreement_may_demand_it(clouds: Path, tmp_path: Path) -> None:
    for clients, secure, why in ((2, False, "secure_aggregation is false, but"), (5, True, "accepts at least 5")):
        own = agreement(tmp_path, clients, f"secure_clients = {clients}\n")
        strict = [{**node, "agreement": own} for node in nodes(clouds)]
        with pytest.raises(fedsat.FedsatError, match=why):
            federate(FaultyNodes(*strict), fedsat.configure(**table_of(clouds, secure_aggregation=secure)), FAST)


def test_an_agreement_counts_the_clients_of_the_sum(clouds: Path, tmp_path: Path) -> None:
    """Four clients exchange keys, but only three send an update."""
    table = table_of(clouds, rounds=1)
    for demanded, left in ((3, 3), (4, 0)):
        own = agreement(tmp_path, demanded, f"secure_clients = {demanded}\n")
        grid = FaultyNodes(*({**node, "agreement": own} for node in nodes(clouds)))
        grid.faults[FIRST_NODE + fedsat.run(**table).records[0].clients[1]] = silent_at(Train.kind, 1)
        run = federate(grid, fedsat.configure(**table), FAST)
        assert len(run.records[0].clients) == left
    assert "clients of the secure aggregation is 3; this node accepts at least 4" in str(run.records[0].left_out)


def test_an_agreement_cannot_demand_more_clients_than_a_node_can_count() -> None:
    assert Agreement(secure_clients=101).secure_clients == 101
    with pytest.raises(fedsat.FedsatError, match=r"secure_clients.*at most 101"):
        Agreement(secure_clients=102)


@pytest.fixture
def members(tmp_path: Path) -> Callable[[Path], list[dict[str, Any]]]:
    """Nodes with identities, whose agreements name all members."""

    def make(clouds: Path) -> list[dict[str, Any]]:
        keys = [Ed25519PrivateKey.generate() for _ in nodes(clouds)]
        ssh, plain = serialization.PublicFormat.OpenSSH, serialization.NoEncryption()
        public = [key.public_key().public_bytes(serialization.Encoding.OpenSSH, ssh).decode() for key in keys]
        configs = []
        for number, (key, node) in enumerate(zip(keys, nodes(clouds), strict=True)):
            identity = tmp_path / f"identity-{number}"
            identity.write_bytes(
                key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, plain)
            )
            own = agreement(tmp_path, number, f"members = {public}\n")
            configs.append({**node, "identity": str(identity), "agreement": own})
        return configs

    return make


def test_members_recognise_each_other(clouds: Path, members: Callable[[Path], list[dict[str, Any]]]) -> None:
    table = table_of(clouds)
    assert_same(federate(FaultyNodes(*members(clouds)), fedsat.configure(**table)), fedsat.run(**table))


def test_keys_that_a_server_makes_up_are_refused(clouds: Path, members: Callable[[Path], list[dict[str, Any]]]) -> None:
    configs = members(clouds)
    configs[0] = {**configs[0], "identity": configs[1]["identity"]}
    with pytest.raises(TrainingError, match="the keys of client 0 are not signed by it"):
        federate(FaultyNodes(*configs), fedsat.configure(**table_of(clouds, per_round=5)), FAST)


def test_broken_identities_are_named(clouds: Path, tmp_path: Path) -> None:
    (tmp_path / "broken").write_text("nothing")
    configs = [{**node, "identity": str(tmp_path / "broken")} for node in nodes(clouds)]
    with pytest.raises(TrainingError, match="cannot read the identity"):
        federate(FaultyNodes(*configs), fedsat.configure(**table_of(clouds)), FAST)
