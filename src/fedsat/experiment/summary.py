"""The record of a round, and the summary of a run's records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedsat.metrics import CHOICES, MEASURES, METRICS, Evaluation, Measure, Metric, RoundRecord, known, worst_class
from fedsat.metrics.intervals import intervals
from fedsat.rounds import RoundResult

LAST = 10
"""Number of last rounds whose mean is reported."""


def round_record(result: RoundResult) -> RoundRecord:
    """Return the record of a round, without metrics."""
    client_weights, traffic = result.client_weights, result.traffic
    record = RoundRecord(
        round=result.number,
        train_loss=float(result.losses.mean()) if len(result.losses) else None,
        clients=result.clients.tolist(),
        weights=client_weights.weights.tolist(),
        effective_clients=client_weights.effective_clients,
        lr=result.lr,
        bytes_down=traffic.down,
        bytes_up=traffic.up,
        bytes_workers=traffic.workers,
        missing=list(result.missing),
        refused={str(client): why for client, why in result.refused.items()},
        refused_workers={str(worker): why for worker, why in result.refused_workers.items()},
    )
    if client_weights.class_scores is not None and client_weights.client_scores is not None:
        record.priority_class = int(client_weights.class_scores.argmax())
        record.class_scores = client_weights.class_scores.tolist()
        record.client_scores = client_weights.client_scores.tolist()
    return record


def summarise(records: Sequence[RoundRecord]) -> dict[str, Any]:
    """Return the main results: those of the last round, the mean of the last ten rounds, and the best round.

    `models` has the same numbers for other models that a method reports.
    """
    evaluated = [record for record in records if record.evaluated]
    summary: dict[str, Any] = {
        "rounds": len(records),
        "bytes_down": sum(record.bytes_down for record in records),
        "bytes_up": sum(record.bytes_up for record in records),
        "seconds": sum(sum(record.seconds.values()) for record in records),
    }
    for what in ("missing", "refused", "refused_workers"):
        if count := sum(len(getattr(record, what)) for record in records):
            summary[what] = count
    if records and records[-1].epsilon is not None:
        summary["epsilon"] = records[-1].epsilon
    if not evaluated:
        return summary
    summary |= quoted([(record.round, record.metrics) for record in evaluated], len(records))
    others = {
        name: quoted([(record.round, record.models[name]) for record in evaluated], len(records))
        for name in evaluated[-1].models
    }
    return {**summary, "models": others} if others else summary


def final_measures(evaluation: Evaluation, chosen: Sequence[Metric], seed: int) -> dict[str, Any]:
    """Return all measures of the final model, those of each class, and confidence intervals.

    Intervals are computed for the metrics of the run, and for each class where a chosen measure uses the scores.
    """
    counted = [each for each in MEASURES if not each.scores or evaluation.histograms is not None]
    by_class = {each.name: known(each.compute(evaluation.counts)) for each in counted if each.of_classes}
    scored = {each.measure for each in chosen if each.detail.scores or each.detail.client_scores}
    classes = [CHOICES[f"class_{each.name}"] for each in counted if each.of_classes and each.name in scored]
    wanted = {each.name: each for each in (*METRICS.values(), *chosen, *classes)}
    return {
        "overall": dict(zip([each.name for each in counted], known(_overall(counted, evaluation)), strict=True)),
        "classes": {"samples": evaluation.confusion.sum(1).tolist(), **by_class},
        "intervals": intervals(evaluation, wanted.values(), seed),
    }


def _overall(counted: Sequence[Measure], evaluation: Evaluation) -> list[float]:
    return [float(each.overall(evaluation.counts)) for each in counted]


Evaluated = Sequence[tuple[int, Mapping[str, Any]]]
"""Evaluated rounds with their metrics."""


def mean_over(rounds: int) -> str:
    """Return the rounds whose mean is quoted, in words; runs of fewer than ten rounds have the mean of all."""
    return "the last ten rounds" if rounds >= LAST else "all rounds"


def last_ten(evaluated: Evaluated, rounds: int) -> list[Mapping[str, Any]]:
    """Return the metrics of the evaluated rounds among the last ten, or of the last evaluated round."""
    return [metrics for number, metrics in evaluated if number > rounds - LAST] or [evaluated[-1][1]]


def quoted(evaluated: Evaluated, rounds: int) -> dict[str, Any]:
    """Return the main results of one model; `rounds` is the number of all rounds."""
    last, final = evaluated[-1][1], last_ten(evaluated, rounds)
    best_round, best = max(evaluated, key=lambda one: float(one[1]["accuracy"]))
    means = {}
    for name in last:
        values = [metrics[name] for metrics in final if isinstance(metrics.get(name), int | float)]
        if values:
            means[name] = float(np.mean(values))
    return {
        **{name: value for name, value in last.items() if isinstance(value, int | float)},
        "worst_class": worst_class(last),
        "last_ten": means,
        "best": {"accuracy": best["accuracy"], "round": best_round},
    }
