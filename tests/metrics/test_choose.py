"""Metrics by name and of your own, one number or several, and from the engine to the files."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedsat
from fedsat.cli.completion import MEASURES as OFFERED
from fedsat.errors import UsageError
from fedsat.experiment.store import StoredRun
from fedsat.metrics import (
    CHOICES,
    METRICS,
    NO_DETAIL,
    Counts,
    Detail,
    Evaluation,
    detail_of,
    find_metrics,
    judged_by,
    measure,
    measures,
    metric,
    metric_path,
)
from tests.support.calling import fedsat as call

TINY: dict[str, Any] = {
    "clients": 10, "per_round": 3, "workers": 2, "rounds": 2, "epochs": 1, "device": "cpu", "hidden": [8],
    "algorithm": "fedavg", "lr": 0.1,
}  # fmt: skip
EVALUATION = Evaluation(np.array([[8, 2], [4, 1]]), 0.5, np.array([0.2, 0.4, 0.6]))


@metric(per="class", unit="")
def predictions(evaluation: Evaluation) -> Any:
    return evaluation.confusion.sum(0)


def undescribed(evaluation: Evaluation) -> Any:
    return evaluation.recall


def test_names_of_the_table() -> None:
    found = find_metrics(["auroc", "accuracy", f"{__name__}:predictions", "worst_client_f1"])
    assert [each.name for each in found] == ["auroc", "predictions", "worst_client_f1"]
    assert detail_of(found) == Detail(scores=True, clients=True)
    assert detail_of(find_metrics(["class_f1", "mcc"])) == NO_DETAIL
    assert [metric_path(each) for each in found] == ["auroc", f"{__name__}:predictions", "worst_client_f1"]
    assert {*OFFERED} <= {*CHOICES}


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        (["aurok"], "unknown metric 'aurok'; did you mean 'auroc'"),
        (["auroc", "auroc"], "name it only once"),
    ],
)
def test_names_that_do_not_exist(paths: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        find_metrics(paths)


def test_several_numbers() -> None:
    assert measure(EVALUATION, [predictions])["predictions"] == [12, 3]
    assert measure(EVALUATION, find_metrics(["class_f1"]))["class_f1"] == pytest.approx([16 / 22, 2 / 8])
    with pytest.raises(UsageError, match=r'it must return a number, or be described by @fedsat.metric\(per="class"\)'):
        measure(EVALUATION, find_metrics([f"{__name__}:undescribed"]))
    with pytest.raises(UsageError, match="must return one number per class"):
        measure(EVALUATION, [replace(predictions, compute=lambda e: e.accuracy)])


def test_by_which_a_model_can_be_judged() -> None:
    assert judged_by("early_stop", "auroc", find_metrics(["auroc"])) is CHOICES["auroc"]
    with pytest.raises(UsageError, match="early_stop is 'auroc', which is not recorded; add it to metrics"):
        judged_by("early_stop", "auroc", [])
    for several in ("recall", "class_f1"):
        with pytest.raises(UsageError, match="unknown metric of early_stop"):
            judged_by("early_stop", several, find_metrics(["class_f1"]))


def test_what_the_clients_counts_are_needed_for() -> None:
    with pytest.raises(UsageError, match="worst_client_auroc needs every client's own results; set client_accuracy"):
        fedsat.run(**TINY, metrics="worst_client_auroc")
    with pytest.raises(UsageError, match="counts of single clients are not available"):
        CHOICES["client_f1"](EVALUATION)


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
def test_from_the_engine_to_the_files(tmp_path: Path, engine: str) -> None:
    chosen = ["auroc", "class_average_precision", "f1", "client_f1", "ece"]
    run = fedsat.run(**TINY, engine=engine, metrics=[*chosen, predictions], out=tmp_path / "run")
    assert run.setup.federation is not None
    last, test = run.records[-1].metrics, run.setup.federation.dataset.test
    evaluation = run.setup.engine.evaluate([run.model], "expected")[0]
    hits = evaluation.labels[:, None] == np.arange(10)
    exact = []
    for score, hit in zip(evaluation.scores.T, hits.T, strict=True):
        good, bad = score[hit][:, None], score[~hit][None, :]
        exact.append((good > bad).mean() + (good == bad).mean() / 2)
    assert last["auroc"] == pytest.approx(np.mean(exact), abs=1e-3)
    assert last["f1"] == pytest.approx(np.mean(measures.f1(Counts(evaluation.confusion))))
    assert (len(last["class_average_precision"]), len(last["client_f1"])) == (10, 10)
    assert sum(last["predictions"]) == len(test.labels)
    right = np.max(evaluation.scores, 1)[evaluation.scores.argmax(1) == evaluation.labels]
    assert 0 < last["ece"] < 1
    assert len(right) == np.trace(evaluation.confusion)

    stored = StoredRun.read(tmp_path / "run")
    assert json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])["metrics"] == last
    assert [each.name for each in stored.own_metrics] == ["auroc", "f1", "ece"]
    final = stored.stored["final"]
    assert final["overall"]["auroc"] == last["auroc"]
    assert final["classes"]["average_precision"] == last["class_average_precision"]
    assert final["classes"]["samples"] == np.bincount(test.labels).tolist()
    low, high = final["intervals"]["f1"]
    assert low < last["f1"] < high
    again = Counts(stored.counts["confusion"], stored.counts["histograms"])
    assert CHOICES["auroc"](Evaluation(again.confusion, 0, histograms=again.histograms)) == last["auroc"]


@pytest.mark.parametrize("how", ["test-split", "local"])
def test_single_clients(how: str, tmp_path: Path) -> None:
    names = ["client_auroc", "worst_client_auroc", "worst_client_balanced", "client_gap_f1"]
    names.remove("worst_client_balanced")
    run = fedsat.run(**TINY, client_accuracy=how, metrics=[*names, "client_recall"], out=tmp_path / "run")
    last, federation = run.records[-1].metrics, run.setup.federation
    assert federation is not None
    assert len(last["client_auroc"]) == 10
    assert last["worst_client_auroc"] == min(last["client_auroc"])
    evaluation = run.setup.engine.evaluate([run.model], how, Detail(client_scores=True))[0]  # type: ignore[arg-type]
    assert evaluation.client_confusion is not None
    assert evaluation.client_histograms is not None
    assert np.allclose(measures.accuracy(evaluation.client_counts), evaluation.client_accuracies)
    if how == "local":
        assert np.array_equal(evaluation.client_confusion.sum(2), federation.class_counts)
    held = evaluation.client_confusion.sum((1, 2))
    assert np.array_equal(evaluation.client_histograms[:, :-1].sum((2, 3)), np.repeat(held[:, None], 10, 1))
    stored = StoredRun.read(tmp_path / "run")
    assert np.array_equal(stored.counts["client_confusion"], evaluation.client_confusion)


def test_without_metrics_nothing_more_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    run = fedsat.prepare(fedsat.configure(**TINY))
    evaluate = run.setup.engine.evaluate

    def watched(*given: Any) -> list[Evaluation]:
        asked.append(given[2])
        return evaluate(*given)

    monkeypatch.setattr(run.setup.engine, "evaluate", watched)
    run.run_round()
    assert asked == [NO_DETAIL]
    assert run.state.evaluation is not None
    assert run.state.evaluation.histograms is None
    assert list(run.records[-1].metrics) == list(METRICS)


def test_tables_of_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = "run --clients 10 --per-round 3 --rounds 2 --epochs 1 --workers 2 --set hidden=[8]".split()
    code, out, err = call(capsys, *words, "--metrics", "auroc,worst_class_f1,mcc", "--out", str(tmp_path / "run"))
    assert (code, err) == (0, "")
    rows = {line.strip().partition("  ")[0]: line.split() for line in out.splitlines() if line.strip()}
    final = StoredRun.read(tmp_path / "run").stored["final"]
    assert rows["AUROC"][1] == f"{final['overall']['auroc']:.3f}"
    assert "–" in rows["MCC"][2]
    assert rows["3"] == [
        "3", str(final["classes"]["samples"][3]), f"{100 * final['classes']['recall'][3]:.1f}",
        f"{final['classes']['f1'][3]:.3f}", f"{final['classes']['auroc'][3]:.3f}",
    ]  # fmt: skip
