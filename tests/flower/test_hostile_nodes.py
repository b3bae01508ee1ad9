"""Nodes that try to stop the run, take it over, or spoil its numbers: the run continues without them."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.lib import format as npy

import fedsat
from fedsat.data import Split
from fedsat.errors import FedsatError
from tests.support.federations import tiny_dataset

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedsat[flower]'")

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from fedsat.flower import masks
from fedsat.flower.influence import SPREAD, damped_confusion, damped_counts, limit, pooled_moments
from fedsat.flower.membership import WAITING
from fedsat.flower.messages import NodeInfo
from fedsat.flower.records import LONGEST_TEXT, MessageError, clean, unpack_array
from fedsat.flower.server import prepare
from fedsat.flower.terms import Terms
from fedsat.flower.transport import Request
from tests.flower.test_equality import write
from tests.flower.test_faults import (
    CLIENTS,
    QUICK,
    changed,
    configure,
    grid_of,
    node_of,
    notes,
    only_for,
    run_federation,
    share,
)  # fmt: skip
from tests.support.faulty_nodes import Fault, FaultyNodes


def saved(array: Any) -> bytes:
    return bytes(Array(np.asarray(array)).data)


def header(text: str, body: bytes = b"") -> bytes:
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode() + body


BROKEN_ARRAYS = {
    "empty": b"",
    "no header": b"\x93NUMPY",
    "zip": b"PK\x03\x04" + bytes(60),
    "pickle": b"\x80\x04K\x01.",
    "code": header("__import__('os').abort()\n"),
    "nested header": header("[" * 60000 + "\n"),
    "huge shape": header("{'descr': '<f4', 'fortran_order': False, 'shape': (999999999999, 999999999999), }\n"),
    "negative shape": header("{'descr': '<f4', 'fortran_order': False, 'shape': (-1,), }\n", bytes(4)),
    "no number": header("{'descr': '<f4', 'fortran_order': False, 'shape': (1e999,), }\n", bytes(4)),
    "objects": header("{'descr': '|O', 'fortran_order': False, 'shape': (1,), }\n", b"\x80\x04K\x01."),
    "fields": header("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,), }\n", bytes(4)),
    "big-endian": header("{'descr': '>f4', 'fortran_order': False, 'shape': (1,), }\n", bytes(4)),
    "cut": saved(np.zeros(5))[:-1],
    "longer": saved(np.zeros(5)) + b"\0",
}


@pytest.mark.parametrize("name", BROKEN_ARRAYS)
def test_broken_arrays_are_refused(name: str) -> None:
    with pytest.raises(MessageError, match="cannot read an array"):
        unpack_array(BROKEN_ARRAYS[name])


@pytest.mark.parametrize("dtype", ["?", "u1", "i1", "i2", "i4", "i8", "f2", "f4", "f8"])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3), (1, 2, 1, 2)])
def test_arrays_as_numpy_writes_them_are_read(dtype: str, shape: tuple[int, ...]) -> None:
    array = np.arange(int(np.prod(shape))).reshape(shape).astype(dtype)
    read = unpack_array(saved(array)).numpy()
    assert (read.dtype, read.shape) == (array.dtype, shape)
    assert (read == array).all()
    assert npy.read_magic(io.BytesIO(saved(array))) == (1, 0)  # the version that is read


BROKEN_HEADS: dict[str, Any] = {
    "nested": "[" * 100_000,
    "infinite": "[1e999]",
    "empty": "",
    "none": [],
    "huge": [2**62, 2**62],
    "many": [1] * 10_000,
    "negative": [-1, 6],
    "fractions": [1.5],
}


@pytest.mark.parametrize("shape", BROKEN_HEADS.values(), ids=list(BROKEN_HEADS))
def test_a_node_with_a_broken_introduction_does_not_participate(shape: Any, clouds: Path) -> None:
    grid = grid_of(clouds)

    def broken(request: Request, reply: RecordDict) -> RecordDict:
        reply.config_records["fedsat"]["shape"] = shape
        return reply

    grid.faults[node_of(grid, 0)] = only_for("query.hello", broken)
    run = prepare(grid, configure(clouds), QUICK)
    assert sorted(run.run_round().clients) == [1, 2, 3]
    assert any("cannot participate" in one["why"] for one in run.records[0].left_out)


def test_array_in_the_wrong_place(clouds: Path) -> None:
    grid = grid_of(clouds)

    def zip_file(request: Request, reply: RecordDict) -> RecordDict:
        name, *_ = reply.array_records["model:params"]
        reply.array_records["model:params"][name] = Array("float32", (2,), "numpy.ndarray", BROKEN_ARRAYS["zip"])
        return reply

    grid.faults[node_of(grid, 0)] = only_for("train", zip_file)
    assert "cannot read an array" in notes(run_federation(grid, configure(clouds, rounds=1)), 1)[0]


def with_numbers(**numbers: Any) -> Fault:
    """Return a fault that changes numbers of a reply."""

    def fault(request: Request, reply: RecordDict) -> RecordDict:
        for name, number in numbers.items():
            reply.metric_records["numbers"][name] = number
        return reply

    return fault


@pytest.mark.parametrize("lie", [{"samples": 2**60}, {"steps": 10**15}, {"steps": 10**12}, {"steps": 0}])
def test_steps_and_samples_are_those_from_when_the_node_joined(lie: dict[str, int], clouds: Path) -> None:
    grid = grid_of(clouds)
    grid.faults[node_of(grid, 1)] = only_for("train", with_numbers(**lie))
    run = run_federation(grid, configure(clouds, rounds=1))
    assert 1 not in run.records[0].clients
    assert "but was asked for 4 on its 30" in notes(run, 1)[1]


@pytest.mark.parametrize("loss", [float("nan"), float("inf"), 1e300])
def test_a_loss_that_is_not_finite_is_refused(loss: float, clouds: Path) -> None:
    grid = grid_of(clouds)
    grid.faults[node_of(grid, 1)] = only_for("train", with_numbers(loss=loss))
    assert notes(run_federation(grid, configure(clouds, rounds=1)), 1)[1] == "loss: it is not finite"


@pytest.mark.parametrize("record", ["model:params", "uploads/control_change"])
def test_values_that_overflow_in_a_sum_are_refused(record: str, clouds: Path) -> None:
    grid = grid_of(clouds)
    huge = changed(record, lambda arrays: {name: np.full_like(array, 3e38) for name, array in arrays.items()})
    grid.faults[node_of(grid, 1)] = only_for("train", huge)
    assert (
        "has a value above 1e+15"
        in notes(run_federation(grid, configure(clouds, algorithm="scaffold", rounds=1)), 1)[1]
    )


def test_a_node_that_claims_all_samples_has_a_bounded_weight(clouds: Path) -> None:
    """30 samples each; the liar claims 2**40 from the beginning, and may count as five times the median."""
    claimed = 2**40
    grid = grid_of(clouds)
    liar = node_of(grid, 1)

    def lie(request: Request, reply: RecordDict) -> RecordDict:
        if "samples" in reply.metric_records.get("numbers", {}):
            reply.metric_records["numbers"]["samples"] = claimed
        if "steps" in reply.metric_records.get("numbers", {}):
            reply.metric_records["numbers"]["steps"] = -(-claimed // 8)
        return reply

    grid.faults[liar] = lie
    run = run_federation(grid, configure(clouds, rounds=1), replace(QUICK, max_weight=5.0))
    weights = dict(zip(run.records[0].clients, run.records[0].weights, strict=True))
    assert weights == pytest.approx({0: 1 / 8, 1: 5 / 8, 2: 1 / 8, 3: 1 / 8})
    assert any("client 1 has 1,099,511,627,776 samples but counts as having 150" in note for note in run.setup.notes)
    with pytest.raises(fedsat.UsageError, match=r"terms.max_weight is 0.5; it must be 0 \(no limit\) or at least 1"):
        Terms(max_weight=0.5)


def test_limits_by_hand() -> None:
    assert limit([10, 20, 90], 3.0) == 60
    assert limit([10, 20, 90], 0.0) is None
    assert limit([0, 0], 3.0) is None
    counts = torch.tensor([[40, 60], [30, 45], [45, 55]])  # Z, TP, T of 100 samples
    assert damped_counts(counts, 100) is counts
    assert damped_counts(counts, 20).tolist() == [[8, 12], [6, 9], [9, 11]]
    # With rounding, T is 2 and 3, and TP is 1 and 2; both errors go to the class with most false predictions.
    assert damped_counts(counts, 6).tolist() == [[1, 4], [1, 2], [2, 3]]
    assert damped_confusion(torch.tensor([[[8, 2], [5, 5]]]), 10).tolist() == [[[4, 1], [2, 2]]]


@pytest.mark.parametrize("seed", range(5))
def test_damped_counts_are_possible(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(40):
        matrices = rng.integers(0, 50, (2, 4, 4))
        matrices[1] += np.diag(matrices[0].sum(1) - matrices[1].sum(1)).clip(0)
        confusion = matrices[0]
        counts = torch.from_numpy(np.stack([confusion.sum(0), np.diag(confusion), confusion.sum(1)]))
        damped = damped_counts(counts, int(rng.integers(1, 200)))
        predicted, correct, labels = damped
        assert (correct >= 0).all()
        assert (correct <= torch.minimum(predicted, labels)).all()
        assert predicted.sum() == labels.sum() <= counts[2].sum()


def test_faked_confusion_and_moments(tmp_path: Path) -> None:
    """Without a test set at the server, nodes report the confusion matrix and the normalisation."""
    dataset = tiny_dataset(120)
    for client in range(4):
        part = Split(dataset.train.images[client::4], dataset.train.labels[client::4])
        write(tmp_path / f"{client}", replace(dataset, train=part))
    config = fedsat.configure(
        clients=4, per_round=4, rounds=1, epochs=1, lr=0.05, dataset="nowhere", algorithm="fedavg"
    )

    def federate(fault: Fault | None = None) -> Any:
        grid = FaultyNodes(*({"folder": str(tmp_path / f"{client}"), "partition-id": client} for client in range(4)))
        if fault is not None:
            grid.faults[node_of(grid, 1)] = fault
        return grid, run_federation(grid, config, replace(QUICK, test="nodes", class_names="a,b,c"))

    honest, clean_run = federate()
    more = changed("results", lambda arrays: {**arrays, "confusion": arrays["confusion"] * 1000})
    _, run = federate(only_for("evaluate", more))
    assert notes(run, 1)[1].startswith("confusion: 60000 samples, but it evaluates on 60")
    assert run.state.evaluation.confusion.sum() == 3 * 60

    def normalisation(grid: FaultyNodes) -> tuple[Any, Any]:
        spec = json.loads(str(grid.last["train"].content.config_records["fedsat"]["run"]))
        return np.array(spec["mean"]), np.array(spec["std"])

    (mean, std), far = normalisation(honest), 1e14
    shifted = changed("moments", lambda m: {"mean": m["mean"] + far, "variance": m["variance"] + far**2})
    grid, run = federate(only_for("query.hello", shifted))
    moved, spread = normalisation(grid)
    assert (np.abs(moved - mean) < 2 * std).all()
    assert (spread < 4 * std).all()
    assert run.summary["accuracy"] > clean_run.summary["accuracy"] - 0.3


def test_pooled_moments_of_a_minority_are_bounded_by_hand() -> None:
    def info(mean: float, variance: float) -> NodeInfo:
        moments = {"mean": torch.tensor([mean]).double(), "variance": torch.tensor([variance]).double()}
        return NodeInfo(-1, (1,), 10, "", moments)

    honest = [info(0.0, 1.0), info(0.0, 1.0), info(0.0, 1.0)]
    assert pooled_moments(honest) == ((0.0,), (1.0,))
    # The median is 0 and s is 1, so the liar's mean counts as 5 and its variance as 25.
    mean, std = pooled_moments([*honest, info(1e9, 1e18)])
    assert mean == (SPREAD / 4,)
    assert std[0] ** 2 == pytest.approx((3 * (1 + 1.25**2) + (25 + 3.75**2)) / 4)


def test_texts_of_nodes_are_short_and_have_no_control_characters() -> None:
    assert clean("\x1b[31mred\x07\nnext\u202eline\0") == "[31mred next line"
    assert len(clean("x" * 20_000_000)) == LONGEST_TEXT
    assert clean("short") == "short"


def test_an_endless_error_and_endless_names_do_not_fill_the_record(clouds: Path, tmp_path: Path) -> None:
    grid = grid_of(clouds)

    def long_name(request: Request, reply: RecordDict) -> RecordDict:
        reply["model:params"] = ArrayRecord({"\x1b]0;" + "n" * 1_000_000: Array(np.zeros(1, np.float32))})
        return reply

    grid.faults[node_of(grid, 1)] = only_for("train", long_name)
    run = run_federation(grid, configure(clouds, rounds=2), out=tmp_path / "run")
    text = (tmp_path / "run" / "metrics.jsonl").read_text()
    assert len(text) < 10_000
    assert "\\u001b" not in text
    assert len(notes(run, 1)[1]) <= LONGEST_TEXT


def test_larger_messages_than_asked_for_are_not_decoded(clouds: Path) -> None:
    grid = grid_of(clouds)

    def large(request: Request, reply: RecordDict) -> RecordDict:
        reply["more"] = ArrayRecord({"x": Array("float32", (1,), "numpy.ndarray", bytes(5_000_000))})
        return reply

    grid.faults[node_of(grid, 1)] = only_for("train", large)
    assert "a message of 5,0" in notes(run_federation(grid, configure(clouds, rounds=1)), 1)[1]


def test_empty_texts_and_lists_do_not_stop_the_run(clouds: Path) -> None:
    grid = grid_of(clouds)

    def empty(request: Request, reply: RecordDict) -> RecordDict:
        reply["extra"] = ConfigRecord({"nothing": "", "none": []})
        return reply

    grid.faults[node_of(grid, 1)] = empty
    assert 1 in run_federation(grid, configure(clouds, rounds=1)).records[0].clients


def test_a_replay_is_refused(clouds: Path) -> None:
    grid, kept = grid_of(clouds), []

    def replay(request: Request, reply: RecordDict) -> RecordDict:
        kept.append(reply)
        return kept[0]

    grid.faults[node_of(grid, 1)] = only_for("train", replay)
    run = run_federation(grid, configure(clouds, rounds=2))
    assert [1 in line.clients for line in run.records] == [True, False]
    assert notes(run, 2)[1] == "its reply does not answer this request"


def test_a_copy_of_another_nodes_reply_is_refused(clouds: Path) -> None:
    grid, first = grid_of(clouds), list[RecordDict]()

    def copy(request: Request, reply: RecordDict) -> RecordDict:
        first.append(reply)
        return first[0]

    for client in (0, 1):
        grid.faults[node_of(grid, client)] = only_for("train", copy)
    run = run_federation(grid, configure(clouds, per_round=4, rounds=1))
    ((client, why),) = notes(run, 1).items()  # the one that was asked last
    assert (client in (0, 1), why) == (True, "its reply does not answer this request")


@pytest.mark.parametrize("key", ["00" * 32, "01" + "00" * 31, "ab", "xy" * 32, "", "0" + " " * 10**6 + "9" * 63])
def test_a_node_with_a_degenerate_key_does_not_stop_sums(key: str, clouds: Path) -> None:
    assert not masks.usable(key)
    config = configure(clouds, algorithm="fedsat", clients=6, per_round=2, workers=5, rounds=1)
    grid = grid_of(clouds, 6)

    def weak(request: Request, reply: RecordDict) -> RecordDict:
        reply.config_records["fedsat"]["key"] = key
        return reply

    grid.faults[node_of(grid, 5)] = only_for("query.hello", weak)
    run = run_federation(grid, config, replace(QUICK, worker_counts="sums"))
    assert len(run.records[0].clients) >= 1
    assert "with which secrets can be agreed" in run.records[0].left_out[0]["why"]


def test_a_crowd_of_nodes_takes_a_bounded_place(clouds: Path) -> None:
    """Nodes that claim a number in use wait for it, but not more of them than the server has room for."""
    grid = grid_of(clouds)
    crowd = [grid.join(share(clouds, 0)) for _ in range(WAITING * CLIENTS + 3)]
    run = prepare(grid, configure(clouds, rounds=2), QUICK)
    members = run.setup.engine._members
    assert len(members._queue) == WAITING * CLIENTS
    assert list(members.turned_away.values()) == ["enough nodes are waiting to become clients"] * 3
    for node in crowd:
        grid.leave(node)
    run.run_round()
    assert not members._queue
    assert not members.turned_away
    assert sorted(run.records[0].clients) == [0, 1, 2, 3]


def test_a_worker_with_unusable_masked_counts_is_left_out_of_the_sum(clouds: Path) -> None:
    config = configure(clouds, algorithm="fedsat", clients=6, per_round=2, workers=4, rounds=1)
    honest = run_federation(grid_of(clouds, 6), config, replace(QUICK, worker_counts="sums"))
    worker = next(client for client in range(6) if client not in honest.records[0].clients)
    for change in (lambda arrays: {}, lambda arrays: {name: array[:2] for name, array in arrays.items()}):
        grid = grid_of(clouds, 6)
        grid.faults[node_of(grid, worker)] = only_for("evaluate.worker", changed("counts", change))
        run = run_federation(grid, config, replace(QUICK, worker_counts="sums"))
        assert run.records[0].clients == honest.records[0].clients
        assert "counts: " in notes(run, 1)[worker]


def test_the_first_node_does_not_decide_the_shape(tmp_path: Path) -> None:
    dataset, other = tiny_dataset(120), tiny_dataset(30, (9,))
    write(tmp_path / "0", other)
    for client in range(1, 4):
        part = Split(dataset.train.images[client::4], dataset.train.labels[client::4])
        write(tmp_path / f"{client}", replace(dataset, train=part))
    grid = FaultyNodes(*({"folder": str(tmp_path / f"{client}"), "partition-id": client} for client in range(4)))
    config = fedsat.configure(
        clients=4, per_round=4, rounds=1, epochs=1, lr=0.05, dataset="nowhere", algorithm="fedavg"
    )
    run = run_federation(grid, config, replace(QUICK, test="nodes", class_names="a,b,c"))
    assert sorted(run.records[0].clients) == [1, 2, 3]
    assert notes(run, 1)[0] in ("its samples have the shape [9], not that of most", "its node is not connected")


def test_a_client_that_returns_with_other_samples_is_refused(clouds: Path) -> None:
    grid = grid_of(clouds)
    run = prepare(grid, configure(clouds, rounds=3), QUICK)
    run.run_round()
    grid.leave(node_of(grid, 2))
    node = grid.join(share(clouds, 2))
    grid.faults[node] = only_for("query.hello", with_numbers(samples=2**30))
    run.run_round()
    run.run_round()
    assert 2 not in run.records[2].clients
    assert any(
        "samples: 1073741824, but 30 when the client first joined" in one["why"] for one in run.records[1].left_out
    )


def test_a_shape_that_only_a_few_share_is_too_few_to_start(tmp_path: Path) -> None:
    for client in range(4):
        write(tmp_path / f"{client}", tiny_dataset(30, (6 + client,)))
    grid = FaultyNodes(*({"folder": str(tmp_path / f"{client}"), "partition-id": client} for client in range(CLIENTS)))
    config = fedsat.configure(clients=4, per_round=4, dataset="nowhere", algorithm="fedavg")
    with pytest.raises(FedsatError, match="1 of 4 nodes joined"):
        prepare(grid, config, replace(QUICK, test="nodes", class_names="a,b,c"))
