"""Which model is the best one: chosen on the clients' validation samples, and never silently on test data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedsat
from fedsat.experiment.folder import read_summary
from fedsat.experiment.saved import read_info, served
from fedsat.report.comparison import compared_metrics
from fedsat.report.groups import group_runs
from fedsat.report.tables import run_table, served_line
from tests.support.runs import TINY, killed_after, results

VALIDATED: dict[str, Any] = {**TINY, "validation": 0.2, "precision": "float64", "evaluate_every": 1}


def test_the_best_model_is_chosen_on_validation_samples(tmp_path: Path) -> None:
    run = fedsat.run(**VALIDATED, out=tmp_path)
    values = [record.validation["balanced_accuracy"] for record in run.records]
    best = int(np.argmax(values))
    selected = {"round": best + 1, "metric": "balanced_accuracy", "value": values[best]}
    assert run.selected == read_summary(tmp_path)["selected"] == selected
    info = read_info(tmp_path / "best.safetensors")
    assert (info.round, info.selected_by, served(tmp_path)) == (best + 1, "balanced_accuracy", "best")
    assert f"the best one, of round {best + 1} (balanced accuracy {100 * values[best]:.1f} % on validation" in (
        served_line(fedsat.load(tmp_path))
    )
    # By hand: the saved model's mean recall on the samples that clients set aside.
    assert run.setup.federation is not None
    held, train = np.concatenate(run.setup.federation.validation), run.setup.federation.dataset.train
    assert not set(held) & set(run.setup.federation.order)
    found = fedsat.load(tmp_path).predict(train.images[held]).classes
    recalls = [(found[train.labels[held] == label] == label).mean() for label in range(10)]
    assert np.mean(recalls) == pytest.approx(values[best])


@pytest.mark.parametrize("metric", ["loss", "test:accuracy"])
def test_any_metric_may_choose(metric: str, tmp_path: Path) -> None:
    run = fedsat.run(**VALIDATED, select=metric, out=tmp_path)
    name = metric.removeprefix("test:")
    values = [(record.metrics if metric != name else record.validation)[name] for record in run.records]
    best = int(np.argmin(values) if name == "loss" else np.argmax(values))
    assert run.selected == {"round": best + 1, "metric": metric, "value": values[best]}
    assert ("optimistic" in served_line(fedsat.load(tmp_path))) == (metric != name)


def test_without_validation_samples_the_last_model_is_used(tmp_path: Path) -> None:
    run = fedsat.run(**TINY, out=tmp_path)
    assert run.selected is None
    assert not (tmp_path / "best.safetensors").exists()
    assert served(tmp_path) == "last"
    assert "that of the last round; with --validation 0.2" in served_line(fedsat.load(tmp_path))
    with pytest.raises(fedsat.UsageError, match=r"has no best\.safetensors; it has model\.safetensors"):
        fedsat.load(tmp_path).predictor("best")


def test_choosing_does_not_change_the_training() -> None:
    runs = [fedsat.run(**VALIDATED, select=metric) for metric in ("", "test:accuracy")]
    first, second = ([record.metrics for record in run.records] for run in runs)
    assert first == second


def test_scores_and_user_defined_metrics_choose(tmp_path: Path) -> None:
    own = "tests.experiment.test_select:confidence"
    run = fedsat.run(**VALIDATED, metrics=["auroc", own], select="auroc", out=tmp_path)
    values = [record.validation["auroc"] for record in run.records]
    assert run.selected is not None
    assert run.selected["value"] == max(values) < 1
    assert run.setup.federation is not None
    held = np.concatenate(run.setup.federation.validation)
    images = run.setup.federation.dataset.train.images[held]
    mean = fedsat.load(tmp_path).predict(images, model="best").probabilities.max(1).mean()
    assert run.records[run.selected["round"] - 1].validation["confidence"] == pytest.approx(mean)


def confidence(evaluation: fedsat.Evaluation) -> float:
    return float(evaluation.scores.max(1).mean())


def test_early_stopping_watches_validation_samples(tmp_path: Path) -> None:
    settings = {
        **VALIDATED,
        "algorithm": "fedavg",
        "rounds": 20,
        "lr": 3.0,
        "early_stop": "balanced_accuracy",
        "patience": 2,
    }
    settings |= {"restore_best": True, "checkpoint_every": 1}
    run = fedsat.run(**settings, out=tmp_path / "whole")
    values = [record.validation["balanced_accuracy"] for record in run.records]
    best = int(np.argmax(values))
    assert len(values) == best + 3 < 20
    assert run.restored == {"round": best + 1, "metric": "balanced_accuracy", "value": values[best]}
    assert read_info(tmp_path / "whole" / "model.safetensors").round == best + 1
    killed_after(2, tmp_path / "resumed", **settings)
    fedsat.resume(tmp_path / "resumed")
    assert results(tmp_path / "resumed") == results(tmp_path / "whole")


def test_tables_of_imbalanced_classes_lead_with_balanced_accuracy(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    run = fedsat.run(dataset="clinics-synthetic", rounds=1, epochs=1, out=tmp_path)
    table = run_table(fedsat.load(tmp_path))
    headings = [str(column.header) for column in table.columns]
    assert headings == ["", "balanced accuracy %", "worst-class recall %", "accuracy %", "worst-client accuracy %"]
    row = {str(cell): place for place, cell in enumerate(table.columns[0].cells)}
    highest = [str(list(column.cells)[row["best test accuracy (round 1)"]]) for column in table.columns[1:]]
    assert highest == ["", "", f"{100 * run.summary['accuracy']:.1f}", ""]
    assert compared_metrics(group_runs([fedsat.load(tmp_path)]))[0].name == "balanced_accuracy"
    assert run._repr_html_().index("balanced accuracy") < run._repr_html_().index("worst-client")
