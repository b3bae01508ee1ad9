"""Metrics: the table by hand, the user's own metrics, and the record that stores them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedsat
from fedsat.errors import DataError, UsageError
from fedsat.metrics import (
    COMPARED,
    METRICS,
    Evaluation,
    Metric,
    RoundRecord,
    compared,
    find_metrics,
    is_imbalanced,
    measure,
    metric,
)

# Class 0: 8 of 10 right; class 1: 1 of 5; class 2 has no test samples.
EVALUATION = Evaluation(
    np.array([[8, 2, 0], [4, 1, 0], [0, 0, 0]]), 0.5, np.array([0.2, 0.4, 0.6, 0.8, 1.0, np.nan])
)  # fmt: skip
TINY: dict[str, Any] = {"clients": 10, "per_round": 3, "workers": 2, "rounds": 2, "epochs": 1, "device": "cpu"}


def confidence(evaluation: Evaluation) -> float:
    """Mean probability of the true class."""
    return float(evaluation.scores[np.arange(len(evaluation.labels)), evaluation.labels].mean())


@metric(label="errors", unit="", higher_is_better=False)
def mistakes(evaluation: Evaluation) -> int:
    return int(evaluation.confusion.sum() - np.trace(evaluation.confusion))


def words(evaluation: Evaluation) -> str:
    return f"loss {evaluation.loss}"


def test_the_table_by_hand() -> None:
    found = measure(EVALUATION)
    assert found["accuracy"] == pytest.approx(9 / 15)
    assert found["balanced_accuracy"] == pytest.approx((0.8 + 0.2) / 2)
    assert found["recall"] == [0.8, 0.2, None]
    assert found["worst_class_recall"] == pytest.approx(0.2)
    assert found["loss"] == 0.5
    clients = ("worst_client_accuracy", "client_accuracy_p10", "client_accuracy_median", "client_accuracy_max")
    assert [found[name] for name in clients] == pytest.approx([0.2, 0.28, 0.6, 1.0])
    assert list(found) == list(METRICS)
    assert json.dumps(found, allow_nan=False)
    assert measure(replace(EVALUATION, loss=float("nan")))["loss"] is None
    with pytest.raises(DataError, match="client accuracies cannot be computed"):
        measure(replace(EVALUATION, client_accuracies=np.array([np.nan])))


def test_how_values_are_written() -> None:
    accuracy, errors = METRICS["accuracy"], mistakes
    assert (accuracy.heading, accuracy.caption, accuracy.written(0.5)) == ("accuracy %", "accuracy, %", "50.0")
    assert (errors.heading, errors.caption, errors.written(6)) == ("errors", "errors", "6.000")
    assert METRICS["worst_class_recall"].caption == "worst-class recall, %"
    assert [each.name for each in COMPARED] == ["accuracy", "worst_class_recall", "worst_client_accuracy"]


def test_metrics_of_your_own() -> None:
    own = find_metrics([f"{__name__}:mistakes"])
    assert own == (mistakes,)
    assert measure(EVALUATION, own)["mistakes"] == 6
    (bare,) = find_metrics([f"{__name__}:confidence"])
    assert (bare.label, bare.unit, bare.compared) == ("confidence", "", True)
    with pytest.raises(UsageError, match=r"words returned 'loss 0.5'; it must return a number"):
        measure(EVALUATION, find_metrics([f"{__name__}:words"]))
    with pytest.raises(UsageError, match="scores are not available: the nodes keep"):
        measure(EVALUATION, (bare,))


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("auprc", "written module:name"),
        ("nowhere:auprc", "cannot import 'nowhere' for the metric"),
        (f"{__name__}:TINY", "not a function"),
        ("fedsat.metrics.table:COMPARED", "not a function"),
    ],
)
def test_what_is_no_metric(path: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        find_metrics([path])


def test_a_name_that_is_taken() -> None:
    with pytest.raises(UsageError, match="already a metric called mistakes"):
        find_metrics([f"{__name__}:mistakes"] * 2)


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
def test_from_the_engine_to_the_page(tmp_path: Path, engine: str) -> None:
    settings = {**TINY, "engine": engine, "metrics": [confidence, mistakes]}
    runs = [fedsat.run(**settings, algorithm=method, out=tmp_path / method) for method in ("fedavg", "fedsat")]
    last = runs[0].records[-1].metrics
    assert 0 < last["confidence"] < 1
    assert last["mistakes"] == round((1 - last["accuracy"]) * len(runs[0].setup.federation.dataset.test.labels))
    assert runs[0].summary["last_ten"]["mistakes"] == np.mean([r.metrics["mistakes"] for r in runs[0].records])
    assert "<th>errors</th>" in runs[0]._repr_html_()

    from fedsat.report.comparison import comparison  # noqa: PLC0415
    from fedsat.report.figures import write_figures  # noqa: PLC0415
    from fedsat.report.groups import find_runs, group_runs  # noqa: PLC0415
    from fedsat.report.page import make_page  # noqa: PLC0415

    groups = group_runs(find_runs([tmp_path]))
    shown = comparison(groups)
    assert shown.headings[:6] == [
        "",
        "accuracy %",
        "worst-class recall %",
        "worst-client accuracy %",
        "confidence",
        "errors",
    ]
    fewest = min(run.summary["last_ten"]["mistakes"] for run in runs)
    best = [row[5][0] for row in shown.rows if row[5][1] == "best"]
    assert best == [f"{fewest:.3f}"]
    assert '"name":"mistakes","title":"errors"' in make_page(groups)
    assert (tmp_path / "figures" / "mistakes.png") in write_figures(groups, tmp_path / "figures")


def test_a_run_without_the_metric_beside_one_with_it(tmp_path: Path) -> None:
    from fedsat.report.comparison import comparison  # noqa: PLC0415
    from fedsat.report.groups import find_runs, group_runs  # noqa: PLC0415
    from fedsat.report.page import make_page  # noqa: PLC0415

    fedsat.run(**TINY, algorithm="fedavg", metrics=f"{__name__}:mistakes", out=tmp_path / "with")
    fedsat.run(**TINY, algorithm="fedprox", out=tmp_path / "without")
    groups = group_runs(find_runs([tmp_path]))
    assert {row[4][0] for row in comparison(groups).rows} >= {"–"}
    assert "mistakes" in make_page(groups)


def test_a_record_and_its_line() -> None:
    metrics = measure(EVALUATION)
    record = RoundRecord(3, 0.5, [1, 2], [0.5, 0.5], 2.0, 10, 5, priority_class=0, missing=[7], metrics=metrics)
    line = json.loads(json.dumps(record.to_json()))
    assert "refused" not in line
    assert line["missing"] == [7]
    assert RoundRecord.from_json(line) == record
    assert (record.evaluated, record.worst_class) == (True, 1)


def test_lines_of_the_first_version_are_read() -> None:
    old = {
        "round": 2, "train_loss": 0.5, "clients": [1], "weights": [1.0], "effective_clients": 1.0, "bytes_down": 10,
        "bytes_up": 5, "bytes_workers": 0, "test_accuracy": 0.6, "balanced_accuracy": 0.5, "test_loss": 0.7,
        "recall": [0.8, 0.2], "worst_class": 1, "worst_recall": 0.2,
        "client_accuracy": {"min": 0.1, "p10": 0.2, "median": 0.3, "max": 0.4},
        "seconds": {"train": 1.0, "measure": 2.0},
    }  # fmt: skip
    kept = ("test_accuracy", "recall", "worst_recall", "client_accuracy")
    old["models"] = {"averaged": {key: old[key] for key in kept}}
    record = RoundRecord.from_json(old)
    assert record.metrics == {
        "accuracy": 0.6, "loss": 0.7, "worst_class_recall": 0.2, "balanced_accuracy": 0.5, "recall": [0.8, 0.2],
        "worst_client_accuracy": 0.1, "client_accuracy_p10": 0.2, "client_accuracy_median": 0.3,
        "client_accuracy_max": 0.4,
    }  # fmt: skip
    assert record.models["averaged"]["worst_client_accuracy"] == 0.1
    assert record.seconds == {"train": 1.0, "evaluate_workers": 2.0}
    assert record.worst_class == 1


def test_only_the_description_is_known() -> None:
    with pytest.raises(UsageError, match="only the description"):
        Metric("auprc", "AUPRC")(EVALUATION)


def test_imbalanced_classes_put_balanced_accuracy_first() -> None:
    assert not is_imbalanced(np.array([[10, 4], [3, 9]]))
    assert not is_imbalanced(np.array([[9, 1], [0, 0]]))  # one class only
    assert is_imbalanced(np.array([[10, 5], [3, 7]]))  # 15 samples and 10
    assert not is_imbalanced(np.array([]))
    assert [each.name for each in compared(True)] == [
        "balanced_accuracy", "worst_class_recall", "accuracy", "worst_client_accuracy",
    ]  # fmt: skip
    assert compared(False) == COMPARED
