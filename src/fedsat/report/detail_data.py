"""The numbers of single classes and clients for the page: tables, ROC, precision-recall and reliability curves.

Counts of runs that differ only in their seed are added up. Clients are those of the first run, because another seed
divides the data differently.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsat.metrics import MEASURES, Counts, Floats, measures
from fedsat.metrics.histograms import middles
from fedsat.report.groups import Group

IN_TABLE = ("recall", "precision", "f1", "auroc", "average_precision")
"""The measures that the table of classes shows, if the counts are known."""
MAX_CURVE_POINTS, POINTS = 60_000, 50
"""Limits for the points of all curves of the page, and of one curve."""
MAX_CLIENT_CELLS = 100_000
"""Limit for the numbers of single clients, for all groups."""


def class_columns() -> list[dict[str, Any]]:
    """Describe the measures of the table of classes."""
    known = {each.name: each for each in MEASURES}
    return [
        {"name": name, "label": known[name].label, "unit": known[name].unit, "scores": known[name].scores}
        for name in IN_TABLE
    ]


def class_data(group: Group, classes: int, groups: int) -> dict[str, Any]:
    """The measures and curves of each class for the final models of a group."""
    counts = _pooled(group)
    if counts is None or len(counts.confusion) != classes:
        return {"samples": None, "measures": {}, "curves": None}
    found = {
        each.name: _numbers(each.compute(counts) * (100 if each.unit == "%" else 1))
        for each in MEASURES
        if each.name in IN_TABLE and (counts.histograms is not None or not each.scores)
    }
    points = min(POINTS, MAX_CURVE_POINTS // (2 * groups * classes))
    curves = None
    if counts.histograms is not None and points >= 10:
        curves = [_curves(counts.positive[c], counts.negative[c], points) for c in range(classes)]
    return {
        "samples": (counts.labels / len(group.runs)).round().astype(int).tolist(),
        "measures": found,
        "curves": curves,
        "intervals": _intervals(group),
    }


def _pooled(group: Group) -> Counts | None:
    """The counts of all seeds together; with histograms if all seeds have them."""
    confusions = [run.counts.get("confusion", run.stored.get("confusion")) for run in group.runs]
    if any(one is None for one in confusions):
        return None
    scores = [run.counts.get("histograms") for run in group.runs]
    complete = [one for one in scores if one is not None]
    pooled = np.sum(complete, axis=0) if len(complete) == len(scores) else None
    return Counts(np.sum([np.asarray(one) for one in confusions], axis=0), pooled)


def _intervals(group: Group) -> list[Any] | None:
    """Confidence intervals of the classes' recalls in per cent; None if there are several seeds."""
    found = group.first.stored.get("final", {}).get("intervals", {}).get("recall")
    if found is None or len(group.runs) > 1:
        return None
    return [None if low is None else [round(100 * low, 1), round(100 * high, 1)] for low, high in found]


def _curves(positive: Floats, negative: Floats, points: int) -> dict[str, Any] | None:
    """The ROC, precision-recall and reliability curves of a class, from its histograms; in per cent."""
    if not positive.any() or not negative.any():
        return None
    hits, alarms = np.cumsum(positive[::-1]), np.cumsum(negative[::-1])
    found, wrong = hits / hits[-1], alarms / alarms[-1]
    kept = _spread(found + wrong, points)
    roc = zip([0.0, *_per_cent(wrong[kept])], [0.0, *_per_cent(found[kept])], strict=True)
    precise = hits[kept] / (hits[kept] + alarms[kept])
    return {
        "roc": [list(pair) for pair in roc],
        "pr": [list(pair) for pair in zip(_per_cent(found[kept]), _per_cent(precise), strict=True)],
        "reliability": _reliability(positive, negative),
    }


def _spread(way: Floats, points: int) -> NDArray[np.int64]:
    """Indices of points that are evenly spread along a curve, of which `way` is the length so far."""
    first = int(np.argmax(way > 0))
    wanted = np.linspace(way[first], way[-1], points)
    return np.unique(np.searchsorted(way, wanted - 1e-12))


def _reliability(positive: Floats, negative: Floats) -> list[list[float]]:
    """Mean probability, share of the class, and samples, in bins of equal width that have samples."""
    p, both = middles(len(positive)), positive + negative
    place = np.minimum((p * measures.CALIBRATION_BINS).astype(int), measures.CALIBRATION_BINS - 1)
    total, mass, hits = (np.bincount(place, values) for values in (both, both * p, positive))
    return [
        [round(100 * mass[b] / total[b], 1), round(100 * hits[b] / total[b], 1), int(total[b])]
        for b in np.flatnonzero(total)
    ]


def client_data(group: Group, groups: int) -> dict[str, Any] | None:
    """The accuracy of each client of the first run, and its recall of each class if it was counted."""
    run = group.first
    accuracies = run.stored.get("client_accuracies")
    if not accuracies or len(accuracies) * groups > MAX_CLIENT_CELLS:
        return None
    data: dict[str, Any] = {
        "seed": run.seed,
        "accuracy": [None if v is None else round(100 * v, 1) for v in accuracies],
    }
    confusion = run.counts.get("client_confusion")
    if confusion is not None and confusion.shape[0] * confusion.shape[1] * groups <= MAX_CLIENT_CELLS:
        counted = Counts(confusion)
        data |= {
            "recall": [_numbers(100 * row) for row in measures.recall(counted)],
            "samples": counted.labels.astype(int).tolist(),
        }
    return data


def _numbers(values: Floats) -> list[float | None]:
    return [None if np.isnan(value) else round(float(value), 3) for value in values]


def _per_cent(values: Floats) -> list[float]:
    return [round(float(value), 2) for value in 100 * values]
