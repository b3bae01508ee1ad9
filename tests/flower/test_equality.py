"""A federation of nodes computes the same as the sequential engine, for every method."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedsat
from fedsat.algorithms import algorithms
from fedsat.data import Dataset, Split
from fedsat.experiment import Config, Run, train
from fedsat.experiment.checkpoint import FOLDER as CHECKPOINTS
from fedsat.experiment.folder import ON_NODES
from fedsat.experiment.store import StoredRun, identity
from tests.support.federations import tiny_dataset

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedsat[flower]'")

from fedsat.flower.presence import STATUS
from fedsat.flower.server import prepare
from fedsat.flower.terms import Terms
from tests.support.faulty_nodes import LENIENT, FaultyNodes

CLIENTS = 5


def settings(folder: Path, **others: Any) -> dict[str, Any]:
    usual: dict[str, Any] = {
        "clients": CLIENTS,
        "per_round": 3,
        "workers": 3,
        "rounds": 3,
        "epochs": 2,
        "batch_size": 4,
        "lr": 0.05,
    }
    partition = {"name": "ls", "beta": 0.5}
    return {"dataset": str(folder), "partition": partition, "engine": "sequential", **usual, **others}


def nodes(folder: Path, clients: int = CLIENTS) -> list[dict[str, Any]]:
    return [{"dataset": str(folder), "partition-id": client, "num-partitions": clients} for client in range(clients)]


def federate(grid: FaultyNodes, config: Config, terms: Terms | None = None, out: Path | None = None) -> Run:
    return train(prepare(grid, config, terms or Terms(timeout=60, wait=60), out))


def assert_same(left: Run, right: Run) -> None:
    trees = [(left.model.params, right.model.params), (left.model.buffers, right.model.buffers)]
    trees += [
        (left.training.server.memory[name], right.training.server.memory[name]) for name in left.training.server.memory
    ]
    for mine, other in trees:
        assert mine.keys() == other.keys()
        for name in mine:
            torch.testing.assert_close(mine[name], other[name], rtol=1e-5, atol=1e-7)
    for line, other_line in zip(left.records, right.records, strict=True):
        assert (line.round, line.clients) == (other_line.round, other_line.clients)
        assert (line.train_loss is None) == (other_line.train_loss is None)  # private clients do not send it
        for key in ("train_loss", "weights", "effective_clients"):
            if (expected := getattr(other_line, key)) is not None:
                assert getattr(line, key) == pytest.approx(expected, rel=1e-5, abs=1e-7)
        assert line.metrics.keys() == other_line.metrics.keys()
        for name, value in line.metrics.items():
            assert value == pytest.approx(other_line.metrics[name], rel=1e-5, abs=1e-7)


@pytest.mark.parametrize("method", list(algorithms))
def test_every_method_equals_the_sequential_engine(method: str, clouds: Path) -> None:
    table = settings(clouds, algorithm=method)
    alone = fedsat.run(**table)
    together = federate(FaultyNodes(*nodes(clouds)), fedsat.configure(**table))
    assert_same(together, alone)
    assert not any(line.left_out for line in together.records)


def test_batchnorm_and_features(tmp_path: Path) -> None:
    write(tmp_path, tiny_dataset(60, (3, 8, 8)))
    table = settings(tmp_path, algorithm="moon", model={"name": "resnet8", "width": 2}, epochs=1)
    assert_same(federate(FaultyNodes(*nodes(tmp_path)), fedsat.configure(**table)), fedsat.run(**table))


def test_the_averaged_model(clouds: Path) -> None:
    table = settings(clouds, algorithm="fedsat", average=0.8)
    alone = fedsat.run(**table)
    together = federate(FaultyNodes(*nodes(clouds)), fedsat.configure(**table))
    for line, other in zip(together.records, alone.records, strict=True):
        assert line.models["averaged"]["recall"] == pytest.approx(other.models["averaged"]["recall"], rel=1e-5)


def test_the_optimizer_and_the_schedule_travel(clouds: Path) -> None:
    local = {"momentum": 0.8, "nesterov": True, "weight_decay": 0.01, "clip": 1.0, "steps": 5, "batch_size": "all"}
    schedule = {"name": "cosine", "warmup": 1}
    table = settings(clouds, algorithm="scaffold", **local, lr_schedule=schedule)
    together = federate(FaultyNodes(*nodes(clouds)), fedsat.configure(**table))
    assert_same(together, fedsat.run(**table))
    assert [line.lr for line in together.records] == pytest.approx([0.025, 0.05, 0.025])


def test_sizes_of_all_clients_reach_the_nodes(clouds: Path) -> None:
    table = settings(clouds, algorithm={"name": "feddyn", "alpha": 0.1, "scale_by_size": True})
    assert_same(federate(FaultyNodes(*nodes(clouds)), fedsat.configure(**table)), fedsat.run(**table))


def test_lengthened_steps(clouds: Path) -> None:
    table = settings(clouds, algorithm={"name": "fedsat", "lengthen": 3.0})
    assert_same(federate(FaultyNodes(*nodes(clouds)), fedsat.configure(**table)), fedsat.run(**table))


@pytest.mark.parametrize("worker_counts", ["each", "sums"])
def test_validation_samples(worker_counts: Any, clouds: Path) -> None:
    table = settings(clouds, algorithm="fedsat", validation=0.3)
    terms = Terms(timeout=60, wait=60, worker_counts=worker_counts)
    assert_same(federate(FaultyNodes(*nodes(clouds)), fedsat.configure(**table), terms), fedsat.run(**table))


@pytest.mark.parametrize("worker_counts", ["each", "sums"])
def test_rare_classes(worker_counts: Any, clouds: Path) -> None:
    """Nodes report nothing of classes with fewer than 8 samples."""
    skewed = {"name": "ls", "beta": 0.3}
    table = settings(clouds, algorithm="fedsat", partition=skewed)
    alone = fedsat.run(**table, report_at_least=8)
    federation = alone.setup.federation
    assert federation is not None
    assert bool(((federation.class_mixes > 0) & (federation.reported_mixes == 0)).any())
    terms = Terms(timeout=60, wait=60, worker_counts=worker_counts)
    assert_same(federate(FaultyNodes(*nodes(clouds)), fedsat.configure(**table, report_at_least=8), terms), alone)


@pytest.mark.parametrize("worker_counts", ["each", "sums"])
def test_samples_of_workers(worker_counts: Any, clouds: Path) -> None:
    """Workers evaluate on 20 of their samples and leave out classes with fewer than 3 among these."""
    table = settings(clouds, algorithm="fedsat", partition={"name": "ls", "beta": 0.3})
    alone = fedsat.run(**table, worker_samples=20, report_at_least=3)
    assert alone.records[0].weights != fedsat.run(**table).records[0].weights
    terms = Terms(timeout=60, wait=60, worker_counts=worker_counts)
    config = fedsat.configure(**table, worker_samples=20, report_at_least=3)
    assert_same(federate(FaultyNodes(*nodes(clouds)), config, terms), alone)


def test_a_node_decides_which_classes_are_rare(clouds: Path, tmp_path: Path) -> None:
    own = tmp_path / "agreement.toml"
    own.write_text(LENIENT.read_text() + "report_at_least = 8\n")
    skewed = {"name": "ls", "beta": 0.3}
    table = settings(clouds, algorithm="fedsat", partition=skewed, client_accuracy="test-split")
    alone = fedsat.run(**table, report_at_least=8)
    strict = ({**node, "agreement": str(own)} for node in nodes(clouds))
    assert_same(federate(FaultyNodes(*strict), fedsat.configure(**table)), alone)


def test_workers_without_validation_samples(clouds: Path) -> None:
    """They report nothing, and the record has no note about them."""
    partition = {"name": "quantity", "beta": 0.2}
    table = settings(clouds, algorithm="fedsat", validation=0.1, partition=partition)
    alone = fedsat.run(**table)
    assert "clients have no validation samples" in "".join(alone.notes)
    together = federate(FaultyNodes(*nodes(clouds)), fedsat.configure(**table))
    assert_same(together, alone)
    assert not any(line.left_out for line in together.records)


def test_accuracies_on_parts_of_the_test_set(clouds: Path) -> None:
    table = settings(clouds, algorithm="feddyn", client_accuracy="test-split", validation=0.2)
    together = federate(FaultyNodes(*nodes(clouds)), fedsat.configure(**table))
    alone = fedsat.run(**table)
    assert_same(together, alone)
    assert together.state.evaluation is not None
    assert alone.state.evaluation is not None
    np.testing.assert_array_equal(together.state.evaluation.client_accuracies, alone.state.evaluation.client_accuracies)
    for terms in (Terms(wait=1, worker_counts="sums"), Terms(wait=1, test="nodes")):
        with pytest.raises(fedsat.UsageError, match="client_accuracy is 'test-split', which needs"):
            federate(FaultyNodes(), fedsat.configure(**table), terms)


def test_local_accuracies(clouds: Path) -> None:
    table = settings(clouds, algorithm="feddyn", client_accuracy="local")
    assert_same(federate(FaultyNodes(*nodes(clouds)), fedsat.configure(**table)), fedsat.run(**table))


def test_folders_on_nodes_equal_the_same_federation_in_one_process(clouds: Path, tmp_path: Path) -> None:
    """Each node has a folder, in which classes may be missing; the server has the test set."""
    table = settings(clouds, algorithm="fedsat", partition={"name": "lsmc", "classes_per_client": 2})
    federation = fedsat.prepare(fedsat.configure(**table)).setup.federation
    assert federation is not None
    whole, folders = federation.dataset, []
    for client in range(CLIENTS):
        part = federation.indices(client)
        folders.append(tmp_path / f"{client}")
        train = Split(whole.train.images[part], whole.train.labels[part])
        write(folders[-1], replace(whole, train=train, lacking=True))
    grid = FaultyNodes(*({"folder": str(folder), "partition-id": k} for k, folder in enumerate(folders)))
    assert_same(federate(grid, fedsat.configure(**table)), fedsat.run(**table))


def test_a_server_without_data(clouds: Path, tmp_path: Path) -> None:
    """The server has no data; the model is tested on the samples that nodes hold out."""
    dataset = tiny_dataset(120)
    for client in range(4):
        part = Split(dataset.train.images[client::4], dataset.train.labels[client::4])
        write(tmp_path / f"{client}", replace(dataset, train=part))
    grid = FaultyNodes(*({"folder": str(tmp_path / f"{client}")} for client in range(4)))
    config = fedsat.configure(
        clients=4, per_round=3, rounds=3, epochs=2, lr=0.05, dataset="nowhere", algorithm="fedsat"
    )
    with pytest.raises(fedsat.UsageError, match="set class_names"):
        federate(grid, config, Terms(wait=1, test="nodes"))
    run = federate(grid, config, Terms(timeout=60, wait=60, test="nodes", class_names="a,b,c"), tmp_path / "run")
    assert run.state.evaluation is not None
    assert run.state.evaluation.confusion.sum() == 4 * len(dataset.test)  # every node has a copy of the test set
    assert run.summary["accuracy"] > 0.8
    assert run.state.evaluation.client_accuracies == pytest.approx([run.summary["accuracy"]] * 4)
    found = StoredRun.read(tmp_path / "run").predict(dataset.test.images)  # the saved model normalises likewise
    assert (found.classes == dataset.test.labels).mean() == run.summary["accuracy"]
    # All nodes normalise with the mean and standard deviation of all samples.
    spec = json.loads(str(grid.last["train"].content.config_records["fedsat"]["run"]))
    assert spec["mean"] == pytest.approx(dataset.mean)
    assert spec["std"] == pytest.approx(dataset.std)


def test_held_out_samples_of_a_partition(clouds: Path) -> None:
    table = {
        **settings(clouds),
        "dataset": "mnist-mini",
        "epochs": 1,
        "batch_size": 16,
        "partition": "iid",
        "rounds": 1,
    }
    grid = FaultyNodes(*({"partition-id": client} for client in range(CLIENTS)))
    run = federate(grid, fedsat.configure(**table), Terms(timeout=30, wait=5, test="nodes"))
    assert run.state.evaluation is not None
    assert run.state.evaluation.confusion.sum() == pytest.approx(6000 / 6, rel=0.02)


def test_files_equal_those_of_a_simulation(clouds: Path, tmp_path: Path) -> None:
    config = fedsat.configure(**settings(clouds, algorithm="fedsat", checkpoint_every=0))
    federate(FaultyNodes(*nodes(clouds)), config, out=tmp_path / "nodes")
    train(fedsat.prepare(config, tmp_path / "alone"))
    mine, other = ({path.name for path in (tmp_path / name).iterdir()} for name in ("nodes", "alone"))
    assert mine == other - {CHECKPOINTS} | {ON_NODES, STATUS}
    stored = StoredRun.read(tmp_path / "nodes")
    assert stored.summary["status"] == "completed"
    assert identity(stored.table) == identity(config.table())
    # Measured bytes exceed the computed ones by a few per cent for names and headers.
    wanted = StoredRun.read(tmp_path / "alone").records
    for line, planned in zip(stored.records, wanted, strict=True):
        for key in ("bytes_down", "bytes_up", "bytes_workers"):
            assert getattr(planned, key) < getattr(line, key) < getattr(planned, key) * 1.5
        assert 0 < (line.bytes_evaluate or 0) < line.bytes_up


def test_a_run_on_nodes_cannot_be_resumed_as_a_simulation(clouds: Path, tmp_path: Path) -> None:
    run = prepare(
        FaultyNodes(*nodes(clouds)), fedsat.configure(**settings(clouds)), Terms(timeout=60, wait=60), tmp_path
    )
    before = {path.name: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(fedsat.UsageError, match=r"was run on real nodes, .* start its server again"):
        fedsat.resume(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    train(run)
    with pytest.raises(fedsat.UsageError, match=r"was run on real nodes, .* start its server again"):
        fedsat.resume(tmp_path, rounds=9)


def write(folder: Path, dataset: Dataset) -> None:
    folder.mkdir(exist_ok=True)
    for prefix, split in (("", dataset.train), ("test_", dataset.test)):
        np.save(folder / f"{prefix}images.npy", split.images)
        np.save(folder / f"{prefix}labels.npy", split.labels)


def test_nodes_choose_the_best_model_as_in_a_simulation(clouds: Path, tmp_path: Path) -> None:
    config = settings(clouds, algorithm="fedsat", validation=0.3)
    run = federate(FaultyNodes(*nodes(clouds)), fedsat.configure(**config), out=tmp_path)
    alone = fedsat.run(**config)
    for mine, other in zip(run.records, alone.records, strict=True):
        assert mine.validation["recall"] == other.validation["recall"]
        for name in ("balanced_accuracy", "loss", "worst_client_accuracy"):
            assert mine.validation[name] == pytest.approx(other.validation[name], rel=1e-5)
    assert run.selected is not None
    assert alone.selected is not None
    assert run.selected["round"] == alone.selected["round"]
    assert StoredRun.read(tmp_path).predictor().info.selected_by == "balanced_accuracy"


def test_nodes_that_report_sums_only_choose_no_model(clouds: Path) -> None:
    terms = Terms(timeout=60, wait=60, worker_counts="sums")
    table = settings(clouds, algorithm="fedsat", validation=0.3)
    grid = FaultyNodes(*nodes(clouds))
    assert federate(grid, fedsat.configure(**{**table, "rounds": 1}), terms).selected is None
    with pytest.raises(fedsat.UsageError, match="select is 'loss', but with worker_counts = 'sums', nodes report no"):
        federate(grid, fedsat.configure(**table, select="loss"), terms)
    with pytest.raises(fedsat.UsageError, match="select is 'auroc', which nodes do not report"):
        federate(grid, fedsat.configure(**table, select="auroc", metrics=["auroc"]))
