"""The numbers of single classes and clients on the page, by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedsat.metrics import Counts, measures
from fedsat.report.detail_data import class_data, client_data
from fedsat.report.groups import find_runs, group_runs
from tests.support.made_runs import make_run


def test_classes_of_all_seeds_together(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / str(seed), seed=seed, classes=4, scores=True) for seed in (0, 1)]
    (group,) = group_runs(find_runs([tmp_path]))
    found = class_data(group, 4, 1)
    both = [Counts(run.counts["confusion"], run.counts["histograms"]) for run in runs]
    pooled = Counts(both[0].confusion + both[1].confusion, both[0].histograms + both[1].histograms)  # type: ignore[operator]
    assert found["samples"] == [20] * 4
    assert found["measures"]["recall"] == pytest.approx((100 * measures.recall(pooled)).tolist(), abs=1e-3)
    assert found["measures"]["auroc"] == pytest.approx(measures.auroc(pooled).tolist(), abs=1e-3)
    curve = found["curves"][1]
    alarms, hits = np.array(curve["roc"]).T
    assert curve["roc"][0] == [0, 0]
    assert curve["roc"][-1] == [100, 100]
    assert (np.diff(alarms) >= 0).all()
    assert (np.diff(hits) >= 0).all()
    assert np.trapezoid(hits, alarms) / 1e4 == pytest.approx(measures.auroc(pooled)[1], abs=0.01)
    assert curve["pr"][-1] == [100, 25]  # everything is taken for the class: a quarter of the samples
    assert sum(samples for _, _, samples in curve["reliability"]) == 160
    share = sum(hits * samples for _, hits, samples in curve["reliability"]) / 160
    assert share == pytest.approx(25, abs=0.1)


def test_runs_without_counts(tmp_path: Path) -> None:
    run = make_run(tmp_path / "old", classes=3)
    (group,) = group_runs(find_runs([tmp_path]))
    found = class_data(group, 3, 1)
    assert {*found["measures"]} == {"recall", "precision", "f1"}
    assert found["curves"] is None
    assert found["intervals"] is None
    clients = client_data(group, 1)
    assert clients is not None
    assert clients["accuracy"] == [round(100 * v, 1) for v in run.stored["client_accuracies"]]
    assert client_data(group, 10_000) is None


def test_many_classes_have_no_curves(tmp_path: Path) -> None:
    make_run(tmp_path / "one", classes=3, scores=True)
    (group,) = group_runs(find_runs([tmp_path]))
    assert class_data(group, 3, 1)["curves"] is not None
    assert class_data(group, 3, 2000)["curves"] is None


def test_recalls_of_single_clients(tmp_path: Path) -> None:
    run = make_run(tmp_path / "one", classes=2, clients=5)
    own = np.array([[[3, 1], [0, 0]]] * 5)
    np.savez(run.folder / "counts.npz", confusion=own.sum(0), client_confusion=own)
    (group,) = group_runs(find_runs([tmp_path]))
    clients = client_data(group, 1)
    assert clients is not None
    assert clients["recall"] == [[75, None]] * 5
    assert clients["samples"] == [[4, 0]] * 5
