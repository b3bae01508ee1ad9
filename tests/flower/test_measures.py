"""Measures on real nodes: the same as in a simulation, from counts that nodes send instead of samples."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedsat
from fedsat.data import Split
from fedsat.experiment.store import StoredRun
from tests.support.federations import tiny_dataset

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedsat[flower]'")

from fedsat.flower.checks import RefusedError, check_histograms
from fedsat.flower.influence import damped_histograms
from fedsat.flower.terms import Terms
from fedsat.metrics.histograms import BINS
from tests.flower.test_equality import CLIENTS, assert_same, federate, nodes, settings, write
from tests.flower.test_faults import changed, node_of, only_for
from tests.support.faulty_nodes import FaultyNodes

OVERALL = ["auroc", "class_average_precision", "weighted_f1", "worst_class_brier", "ece", "mcc"]
OF_CLIENTS = ["client_f1", "worst_client_auroc", "client_gap_recall"]
ON_NODES = Terms(timeout=60, wait=60, test="nodes", class_names="a,b,c")


def test_measures_of_clients_equal_those_of_a_simulation(clouds: Path) -> None:
    table = settings(clouds, algorithm="fedavg", client_accuracy="local", metrics=[*OVERALL, *OF_CLIENTS])
    together = federate(FaultyNodes(*nodes(clouds)), fedsat.configure(**table))
    assert_same(together, fedsat.run(**table))
    assert len(together.records[-1].metrics["client_f1"]) == CLIENTS
    assert not any(line.left_out for line in together.records)


def test_rare_classes_are_in_no_count(clouds: Path) -> None:
    table = settings(clouds, algorithm="fedavg", client_accuracy="local", metrics=OF_CLIENTS, report_at_least=8)
    table["partition"] = {"name": "ls", "beta": 0.3}
    together = federate(FaultyNodes(*nodes(clouds)), fedsat.configure(**table))
    alone = fedsat.run(**table)
    confusion, wanted = (run.state.evaluation.client_confusion for run in (together, alone))  # type: ignore[union-attr]
    assert confusion is not None
    np.testing.assert_array_equal(confusion, wanted)
    assert confusion.sum() > 0
    assert ((confusion.sum(-1) == 0) | (confusion.sum(-1) >= 8)).all()


def folders(tmp_path: Path) -> tuple[fedsat.Dataset, list[dict[str, Any]]]:
    """Return a dataset, and nodes that each have a quarter of its samples."""
    dataset, own = tiny_dataset(120), []
    for client in range(4):
        train = Split(dataset.train.images[client::4], dataset.train.labels[client::4])
        test = Split(dataset.test.images[client::4], dataset.test.labels[client::4])
        write(tmp_path / f"{client}", replace(dataset, train=train, test=test))
        own.append({"folder": str(tmp_path / f"{client}"), "partition-id": client})
    return replace(dataset, owners=np.arange(120) % 4), own


def config(metrics: list[str], **others: Any) -> dict[str, Any]:
    return {
        "clients": 4, "per_round": 3, "rounds": 2, "epochs": 2, "lr": 0.05, "algorithm": "fedavg", "metrics": metrics,
        "engine": "sequential", **others,
    }  # fmt: skip


def test_tests_on_the_nodes_equal_one_test_in_one_process(tmp_path: Path) -> None:
    """Nodes hold the test samples; the histograms add up to those of the whole test set."""
    dataset, own = folders(tmp_path)
    alone = fedsat.run(**config(OVERALL, dataset=dataset, partition="natural"))
    table = config([*OVERALL, *OF_CLIENTS], dataset="nowhere")
    together = federate(FaultyNodes(*own), fedsat.configure(**table), ON_NODES, tmp_path / "run")
    for line, other in zip(together.records, alone.records, strict=True):
        for name in (*OVERALL, "accuracy", "recall", "loss"):
            assert line.metrics[name] == pytest.approx(other.metrics[name], abs=1e-5)
    evaluation = together.state.evaluation
    assert evaluation is not None
    assert evaluation.client_confusion is not None
    assert (evaluation.client_confusion.sum(0) == evaluation.confusion).all()
    stored = StoredRun.read(tmp_path / "run")
    assert stored.counts["histograms"].sum() == 2 * 60 * 2  # 60 samples in 3 classes and the confidence row


def test_a_node_that_sends_other_scores_is_left_out(tmp_path: Path) -> None:
    own = folders(tmp_path)[1]
    grid = FaultyNodes(*own)

    def moved(arrays: dict[str, Any]) -> dict[str, Any]:
        histograms = arrays["histograms"].copy()
        histograms[:, 0, 0, 1] += 5  # five samples of a class that do not exist
        return {**arrays, "histograms": histograms}

    grid.faults[node_of(grid, 1)] = only_for("evaluate", changed("results", moved))
    run = federate(grid, fedsat.configure(**config(["auroc"], dataset="nowhere")), ON_NODES)
    assert {(note["client"], note["why"]) for note in run.records[0].left_out} == {
        (1, "histograms: they do not count the samples of the confusion matrix")
    }
    assert run.state.evaluation is not None
    assert run.state.evaluation.confusion.sum() == 3 * 15


def test_histograms_must_count_what_the_confusion_matrix_counts() -> None:
    """One model, two classes: 3 samples of class 0, all right, and 1 of class 1, which is taken for class 0."""
    confusion = torch.tensor([[[3, 0], [1, 0]]])
    sent = torch.zeros(1, 3, BINS, 2, dtype=torch.int64)
    sent[0, 0, 10] = torch.tensor([1, 3])  # others and own samples of class 0
    sent[0, 1, 20] = torch.tensor([3, 1])
    sent[0, 2, 30] = torch.tensor([1, 3])  # wrong and right predictions
    assert check_histograms(sent, confusion) is sent
    for wrong in (sent * 2, sent.roll(1, 1), -sent, sent[:, :2], sent.to(torch.float64), None):
        with pytest.raises(RefusedError, match="histograms: "):
            check_histograms(wrong, confusion)


def test_damped_histograms_by_hand() -> None:
    """Eight samples in bins of one each count as two: one of the lower half and one of the upper half."""
    histograms = torch.zeros(1, 1, BINS, 2, dtype=torch.int64)
    histograms[0, 0, :8, 1] = 1
    damped = damped_histograms(histograms, 2)
    assert damped[0, 0, :8, 1].tolist() == [0, 0, 0, 1, 0, 0, 0, 1]
    assert int(damped.sum()) == 2
    assert damped_histograms(histograms, 8) is histograms
