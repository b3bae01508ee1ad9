"""Nodes that fail, lie, leave or join: the round continues with the others, and the record names them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import fedsat
from fedsat.errors import FedsatError, TrainingError
from fedsat.experiment import Run, train
from fedsat.experiment.folder import read_records, read_summary

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedsat[flower]'")

from flwr.app import Array, ArrayRecord, RecordDict

from fedsat.flower.evaluation_messages import EvaluateWorker
from fedsat.flower.server import prepare
from fedsat.flower.terms import Terms
from fedsat.flower.transport import Request
from fedsat.flower.worker_round import pseudonyms
from tests.support.faulty_nodes import Fault, FaultyNodes

CLIENTS = 4
QUICK = Terms(timeout=0.3, wait=0.3, retries=1)


def configure(folder: Path, **others: Any) -> fedsat.Config:
    usual = {"clients": CLIENTS, "per_round": CLIENTS, "workers": 3, "rounds": 3, "epochs": 1, "batch_size": 8}
    table = {"dataset": str(folder), "partition": "iid", "algorithm": "fedavg", "lr": 0.05, **usual, **others}
    return fedsat.configure(**table)


def share(folder: Path, client: int) -> dict[str, Any]:
    return {"dataset": str(folder), "partition-id": client}


def grid_of(folder: Path, clients: int = CLIENTS) -> FaultyNodes:
    return FaultyNodes(*(share(folder, client) for client in range(clients)))


def node_of(grid: FaultyNodes, client: int) -> int:
    return next(node for node, context in grid.contexts.items() if context.node_config["partition-id"] == client)


def run_federation(grid: FaultyNodes, config: fedsat.Config, terms: Terms = QUICK, out: Path | None = None) -> Run:
    return train(prepare(grid, config, terms, out))


def notes(run: Run, round_number: int) -> dict[int, str]:
    return {one["client"]: one["why"] for one in run.records[round_number - 1].left_out}


def only_for(kind: str, fault: Fault) -> Fault:
    """Restrict a fault to one type of message."""
    return lambda request, reply: fault(request, reply) if request.kind == kind else reply


def silent(request: Request, reply: RecordDict) -> None:
    return None


def changed(record: str, change: Any) -> Fault:
    """Return a fault that changes one record of arrays."""

    def fault(request: Request, reply: RecordDict) -> RecordDict:
        arrays = {name: array.numpy() for name, array in reply.array_records[record].items()}
        reply[record] = ArrayRecord({name: Array(array) for name, array in change(arrays).items()})
        return reply

    return fault


def first(arrays: dict[str, Any], made: Any) -> dict[str, Any]:
    name = next(iter(arrays))
    return {**arrays, name: made(arrays[name])}


BAD_UPDATES = {
    "is not finite": lambda arrays: first(arrays, lambda a: np.full_like(a, np.nan)),
    "is torch.float32 [1], not": lambda arrays: first(arrays, lambda a: np.zeros(1, np.float32)),
    "is torch.float64": lambda arrays: first(arrays, lambda a: a.astype(np.float64)),
    "'stranger' is unknown": lambda arrays: {**arrays, "stranger": np.zeros(3, np.float32)},
    "is missing": lambda arrays: dict(list(arrays.items())[1:]),
    "cannot read an array": lambda arrays: first(arrays, lambda a: np.array(["text"])),
}


@pytest.mark.parametrize("why", BAD_UPDATES)
def test_bad_updates_are_refused_and_named(why: str, clouds: Path) -> None:
    grid = grid_of(clouds)
    grid.faults[node_of(grid, 2)] = only_for("train", changed("model:params", BAD_UPDATES[why]))
    run = run_federation(grid, configure(clouds))
    for line in run.records:
        assert 2 not in line.clients
        assert len(line.clients) == 3
        assert why in notes(run, line.round)[2]
    # The round is that of the other three clients, as if client 2 had not been sampled.
    assert all(bool(torch.isfinite(tensor).all()) for tensor in run.model.params.values())


def test_uploads_are_checked(clouds: Path) -> None:
    grid = grid_of(clouds)
    nan = changed("uploads/control_change", BAD_UPDATES["is not finite"])
    grid.faults[node_of(grid, 1)] = only_for("train", nan)
    run = run_federation(grid, configure(clouds, algorithm="scaffold"))
    assert "control_change" in notes(run, 1)[1]
    assert 1 not in run.records[-1].clients


def test_a_silent_node_gets_at_most_twice_the_time_of_the_others(clouds: Path) -> None:
    grid = grid_of(clouds)
    grid.faults[node_of(grid, 0)] = lambda request, reply: reply if request.round == 0 else None
    run = run_federation(grid, configure(clouds), Terms(timeout=2.0, wait=1.0))
    assert run.records[0].seconds["train"] > 2
    assert run.records[1].seconds["train"] < 2
    assert all("no reply in" in notes(run, number)[0] for number in (1, 2, 3))


def test_the_error_of_a_node_is_recorded(clouds: Path, tmp_path: Path) -> None:
    grid = grid_of(clouds)
    node = node_of(grid, 3)

    def vanish(request: Request, reply: RecordDict) -> RecordDict:
        if request.kind == "query.hello":
            grid.contexts[node].node_config["dataset"] = str(tmp_path / "gone")
        return reply

    grid.faults[node] = vanish
    run = run_federation(grid, configure(clouds))
    assert notes(run, 1)[3] == f"there is no folder {tmp_path / 'gone'}"


def test_state_stays_on_the_node_and_only_used_updates_change_it(clouds: Path) -> None:
    """A client whose update was not used continues from its last used state, so the run is the same."""
    config = configure(clouds, algorithm="scaffold", rounds=4)
    alone = run_federation(grid_of(clouds), config)
    assert all(state.keys() == {"used"} for state in alone.training.states.values())

    grid, rounds = grid_of(clouds), []

    def second_time_silent(request: Request, reply: RecordDict) -> RecordDict | None:
        rounds.append(request.content.config_records["fedsat"]["round"])
        return None if len(rounds) == 2 else reply

    grid.faults[node_of(grid, 1)] = only_for("train", second_time_silent)
    # Client 1 is missing in round 2, but all clients are needed: the round is retried from the same state.
    retried = run_federation(grid, config, Terms(timeout=0.3, wait=0.3, min_fraction=1.0))
    assert rounds == [1, 2, 2, 3, 4]
    for name, tensor in alone.model.params.items():
        assert torch.equal(tensor, retried.model.params[name])


def test_a_round_with_too_few_responses_stops_the_run_with_the_last_good_model(clouds: Path, tmp_path: Path) -> None:
    grid, config = grid_of(clouds), configure(clouds)
    run = prepare(grid, config, Terms(timeout=0.2, wait=0.3, retries=2, min_fraction=0.75), tmp_path / "out")
    run.run_round()
    good = {name: tensor.clone() for name, tensor in run.model.params.items()}
    for client in (0, 1):
        grid.faults[node_of(grid, client)] = silent
    with pytest.raises(TrainingError, match="round 2, train: 2 of 4 clients responded, but 3 are needed"):
        train(run)
    trained = [node for node, kind in grid.requests if kind == "train"]
    assert trained.count(node_of(grid, 0)) == 1 + 3  # round 1, round 2, and two retries
    assert trained.count(node_of(grid, 3)) == 2  # a client that responded is not asked again
    assert read_summary(tmp_path / "out")["status"] == "failed"
    assert len(read_records(tmp_path / "out")) == 1
    saved = load_file(tmp_path / "out" / "model.safetensors")
    assert all(torch.equal(saved[name], good[name]) for name in good)


def test_a_node_leaves_and_another_replaces_it(clouds: Path) -> None:
    grid = grid_of(clouds)
    run = prepare(grid, configure(clouds, algorithm="scaffold", rounds=4), QUICK)
    run.run_round()
    grid.leave(node_of(grid, 2))
    run.run_round()
    grid.join(share(clouds, 2))
    train(run)
    assert [2 in line.clients for line in run.records] == [True, False, True, True]
    assert "not connected" in notes(run, 2)[2]
    reasons = [one["why"] for one in run.records[2].left_out]
    assert any("it is back, as node" in why for why in reasons)
    assert "it lost its state and started with a new one" in reasons


def test_a_node_may_join_late_but_not_as_an_existing_client(clouds: Path) -> None:
    grid = FaultyNodes(*(share(clouds, client) for client in (0, 1, 2)))
    twin = grid.join(share(clouds, 0))
    run = prepare(grid, configure(clouds), QUICK)
    run.run_round()
    grid.join(share(clouds, 3))
    run.run_round()
    assert [sorted(line.clients) for line in run.records] == [[0, 1, 2], [0, 1, 2, 3]]
    assert (twin, "train") not in grid.requests


def test_too_few_nodes_to_start(clouds: Path, tmp_path: Path) -> None:
    grid = FaultyNodes(share(clouds, 0), {"folder": str(tmp_path / "nowhere")}, {"partition-id": 7})
    with pytest.raises(FedsatError, match=r"1 of 4 nodes joined within 0.3 s, but 2 are needed .*; node \d+ cannot"):
        prepare(grid, configure(clouds), QUICK)


WRONG_COUNTS = {
    "is negative or too large": lambda c: c - 1000,
    "more correct predictions of a class": lambda c: np.stack([c[0], c[1] + c[0].sum()]),
    "predictions for": lambda c: np.stack([c[0] + 1, c[1]]),
    "int64 [2, 2], not": lambda c: c[:, :2],
    "float64": lambda c: c.astype(np.float64),
    "a value is negative or too large": lambda c: c + 2**50,
}


@pytest.mark.parametrize("why", WRONG_COUNTS)
def test_a_worker_with_wrong_counts_is_left_out(why: str, clouds: Path) -> None:
    config = configure(clouds, algorithm="fedsat", clients=5, per_round=3, rounds=1)
    honest = run_federation(grid_of(clouds, 5), config)
    worker = next(client for client in range(5) if client not in honest.records[0].clients)
    grid = grid_of(clouds, 5)
    lie = changed("counts", lambda arrays: first(arrays, WRONG_COUNTS[why]))
    grid.faults[node_of(grid, worker)] = only_for("evaluate.worker", lie)
    run = run_federation(grid, config)
    assert why in notes(run, 1)[worker]
    # The clients' weights come from the remaining workers.
    assert sorted(run.records[0].clients) == sorted(honest.records[0].clients)
    assert sum(run.records[0].weights) == pytest.approx(1)
    assert run.records[0].client_scores != honest.records[0].client_scores


@pytest.mark.parametrize("change", [lambda arrays: {}, lambda arrays: {"x": next(iter(arrays.values()))}])
def test_a_worker_with_counts_of_other_clients_is_left_out(change: Any, clouds: Path) -> None:
    config = configure(clouds, algorithm="fedsat", clients=5, per_round=3, rounds=1)
    worker = next(
        client for client in range(5) if client not in run_federation(grid_of(clouds, 5), config).records[0].clients
    )
    grid = grid_of(clouds, 5)
    grid.faults[node_of(grid, worker)] = only_for("evaluate.worker", changed("counts", change))
    assert "not those of the requested models" in notes(run_federation(grid, config), 1)[worker]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda arrays: {name: array * 2 for name, array in arrays.items()}, "samples, but it has"),
        (lambda arrays: {"counts": arrays["counts"]}, "labels: missing"),
        (lambda arrays: {**arrays, "labels": arrays["labels"] * 0}, "more correct predictions of a class"),
    ],
)
def test_a_client_whose_own_counts_are_wrong_is_left_out(change: Any, why: str, clouds: Path) -> None:
    grid = grid_of(clouds)
    grid.faults[node_of(grid, 1)] = only_for("train", changed("counts", change))
    run = run_federation(grid, configure(clouds, algorithm="fedsat", rounds=1))
    assert why in notes(run, 1)[1]
    assert 1 not in run.records[0].clients


def test_label_histograms_are_sent_once(clouds: Path) -> None:
    config, grid = (
        configure(clouds, algorithm="fedsat", clients=6, per_round=2, workers=4, rounds=5),
        grid_of(clouds, 6),
    )
    sent: list[int] = []

    def listen(request: Request, reply: RecordDict) -> RecordDict:
        arrays = reply.array_records
        sent.extend([request.node] * ("labels" in arrays or "labels" in arrays.get("counts", {})))
        return reply

    for node in grid.contexts:
        grid.faults[node] = listen
    run_federation(grid, config)
    assert sorted(sent) == sorted(grid.contexts)


@pytest.mark.parametrize("worker_counts", ["each", "sums"])
def test_workers_do_not_learn_whose_models_they_evaluate(worker_counts: Any, clouds: Path) -> None:
    """No name and no key in a request occurs twice in a run."""
    config = configure(clouds, algorithm="fedsat", clients=8, per_round=4, workers=5, rounds=6)
    grid, seen = grid_of(clouds, 8), list[str]()

    def listen(request: Request, reply: RecordDict) -> RecordDict:
        message = EvaluateWorker.unpack(request.content)
        seen.extend(message.models)
        for keys in message.peers.values():
            seen.extend(keys)
        return reply

    for node in grid.contexts:
        grid.faults[node] = only_for("evaluate.worker", listen)
    run_federation(grid, config, Terms(timeout=5, wait=5, worker_counts=worker_counts))
    assert len(seen) == len(set(seen)) > 0


def test_models_have_new_names_and_a_random_order() -> None:
    sets = {client: [client, 50] for client in range(30)}
    first, second = (pseudonyms(sets)[50] for _ in range(2))
    assert sorted(first.values()) == sorted(second.values()) == list(range(30))
    assert not first.keys() & second.keys()
    assert len({tuple(names.values()) for names in (first, second, dict(enumerate(range(30))))}) == 3


def test_silent_workers_contribute_nothing(clouds: Path) -> None:
    config = configure(clouds, algorithm="fedsat", clients=5, per_round=3, rounds=1)
    grid = grid_of(clouds, 5)
    for client in range(5):
        grid.faults[node_of(grid, client)] = only_for("evaluate.worker", silent)
    run = run_federation(grid, config)
    sampled = run.records[0].clients
    assert len(sampled) == 3
    assert notes(run, 1).keys() == set(range(5)) - set(sampled)


@pytest.mark.parametrize("missing", [False, True], ids=["all respond", "one worker is silent"])
def test_sums_give_the_same_weights_and_hide_single_counts(clouds: Path, missing: bool) -> None:
    skewed = {"name": "ls", "beta": 0.3}
    config = configure(clouds, algorithm="fedsat", clients=6, per_round=2, workers=4, rounds=2, partition=skewed)
    grid, sent = grid_of(clouds, 6), []

    def listen(request: Request, reply: RecordDict) -> RecordDict:
        sent.extend(array.numpy() for array in reply.array_records["counts"].values())
        return reply

    for node in grid.contexts:
        grid.faults[node] = only_for("evaluate.worker", listen)
    gone = next(k for k in range(6) if k not in run_federation(grid_of(clouds, 6), config).records[0].clients)
    if missing:
        grid.faults[node_of(grid, gone)] = only_for("evaluate.worker", silent)
    hidden = run_federation(grid, config, Terms(timeout=0.3, wait=0.3, worker_counts="sums"))
    # Single reports are unreadable: true counts are below the number of samples, masked ones almost never are.
    assert np.mean([np.abs(counts.astype(np.float64)).min() > 10**9 for counts in sent]) > 0.9
    if not missing:
        open_ = run_federation(grid_of(clouds, 6), config)
        for line, other in zip(hidden.records, open_.records, strict=True):
            assert line.weights == pytest.approx(other.weights)
            assert line.client_scores == pytest.approx(other.client_scores)
    else:
        assert sum(hidden.records[-1].weights) == pytest.approx(1)


def test_sums_are_refused_without_other_workers(clouds: Path) -> None:
    with pytest.raises(fedsat.UsageError, match="each client is its only worker"):
        prepare(grid_of(clouds), configure(clouds, algorithm="fedsat"), Terms(wait=0.3, worker_counts="sums"))


def test_sums_are_refused_if_the_weighting_needs_single_reports(clouds: Path) -> None:
    config = configure(clouds, algorithm="fedsat", clients=6, per_round=2, statistics="median")
    with pytest.raises(fedsat.UsageError, match="needs the reports of single workers"):
        prepare(grid_of(clouds, 6), config, Terms(wait=0.3, worker_counts="sums"))


def test_impossible_sums_stop_the_run_and_name_the_client(clouds: Path) -> None:
    config = configure(clouds, algorithm="fedsat", clients=6, per_round=2, workers=4, rounds=1)
    grid = grid_of(clouds, 6)
    lie = changed("counts", lambda arrays: first(arrays, lambda c: c + np.array([[1], [0], [0]])))
    for node in grid.contexts:
        grid.faults[node] = only_for("evaluate.worker", lie)
    with pytest.raises(TrainingError, match=r"round 1, workers of client \d: counts"):
        run_federation(grid, config, Terms(timeout=0.3, wait=0.3, worker_counts="sums"))


def test_accuracies_out_of_range_are_ignored(clouds: Path) -> None:
    grid = grid_of(clouds)
    lie = changed("results", lambda arrays: {"accuracy": arrays["accuracy"] + 1})
    grid.faults[node_of(grid, 0)] = only_for("evaluate", lie)
    run = run_federation(grid, configure(clouds))
    assert "not between 0 and 1" in notes(run, 1)[0]
    assert run.state.evaluation is not None
    assert np.isnan(run.state.evaluation.client_accuracies[0])
