"""Confidence intervals of metrics over the test set, by the bootstrap.

Drawing test samples with replacement changes only the counts, so resamples are drawn from the counts: a multinomial
over the cells of the confusion matrix, or over the bins of a class's scores. This is the same distribution, without the
samples. Intervals say how much a metric would vary with another test set of the same size, not with another training.

The histograms do not tell which scores of different classes belong to the same sample. Means over more than two classes
of measures of scores, such as AUROC, therefore have no interval; each class does. In expected client accuracies, the
clients' class mixes are fixed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsat.metrics import measures
from fedsat.metrics.choose import known
from fedsat.metrics.evaluation import Evaluation
from fedsat.metrics.histograms import BINS, merged
from fedsat.metrics.measures import Counts
from fedsat.metrics.table import CHOICES, METRICS, Metric
from fedsat.seeding import generator

LEVEL, RESAMPLES = 0.95, 1000
FEWEST, MOST = 512, 3 * BINS
"""Fewest bins of the resampled scores of a class, and most of all classes: fewer bins are faster, but they shift the
intervals if the scores of all samples are close together."""
TOGETHER = 1 << 24
"""Largest number of resampled counts in memory at a time."""

Interval = list[Any]
"""Low and high, or one such pair for each class or client; None where undefined."""


def intervals(evaluation: Evaluation, metrics: Iterable[Metric], seed: int) -> dict[str, Interval]:
    """Return the intervals of those metrics that have one, by name; the same seed gives the same intervals."""
    wanted = [each for each in metrics if _has_interval(each, evaluation)]
    rng, values = generator(seed, "intervals"), dict[str, list[Any]]()
    scores = any(each.detail.scores for each in wanted)
    for size in _sizes(evaluation, scores):
        drawn = _resampled(evaluation, rng, size, scores)
        for each in wanted:
            values.setdefault(each.name, []).append(each(drawn))
    return {name: _percentiles(np.concatenate(found)) for name, found in values.items()}


def _has_interval(metric: Metric, evaluation: Evaluation) -> bool:
    """Whether a metric of the table can be resampled from the counts."""
    if metric.name == "loss" or metric is not (METRICS.get(metric.name) or CHOICES.get(metric.name)):
        return False
    if metric.detail.client_scores or (metric.detail.scores and evaluation.histograms is None):
        return False
    counted = evaluation.client_confusion is not None or evaluation.class_mixes is not None
    if not counted and (metric.detail.clients or "client" in metric.name):
        return False
    joint = metric.detail.scores and not metric.per and metric.name != "ece"
    return not joint or len(evaluation.confusion) == 2


def _sizes(evaluation: Evaluation, scores: bool) -> list[int]:
    """Return the numbers of resamples that are drawn together, so that they fit into memory."""
    classes = len(evaluation.confusion)
    cells = classes**2 + (classes + 1) * 2 * _bins(classes) * scores
    for clients in (evaluation.client_confusion, evaluation.class_mixes):
        cells += 0 if clients is None else len(clients) * classes**2
    size = max(1, min(RESAMPLES, TOGETHER // cells))
    return [min(size, RESAMPLES - start) for start in range(0, RESAMPLES, size)]


def _resampled(evaluation: Evaluation, rng: np.random.Generator, size: int, scores: bool) -> Evaluation:
    """Return evaluations of resampled test sets as one, whose counts have a first axis of this size."""
    mixes, of_clients = evaluation.class_mixes, evaluation.client_confusion
    confusion, accuracies = _draw(rng, evaluation.confusion, size), evaluation.client_accuracies
    if of_clients is not None:
        of_clients = _draw(rng, of_clients, size)
        accuracies = measures.accuracy(Counts(of_clients))
    elif mixes is not None:
        recall = measures.recall(Counts(confusion))
        seen = (~np.isnan(recall)).astype(np.float64)
        accuracies = measures.share(np.nan_to_num(recall) @ mixes.T, seen @ mixes.T)
    histograms = _draw_scores(rng, evaluation.histograms, size) if scores else None
    return Evaluation(
        confusion,
        evaluation.loss,
        accuracies,
        histograms=histograms,
        client_confusion=of_clients,
        class_mixes=mixes,
    )


def _draw(rng: np.random.Generator, counts: NDArray[Any], size: int) -> NDArray[np.int64]:
    """Draw counts of as many samples, [size, …], from the cells that have any."""
    flat = counts.reshape(-1)
    full = np.flatnonzero(flat)
    drawn = np.zeros((size, flat.size), dtype=np.int64)
    if len(full):
        drawn[:, full] = rng.multinomial(int(flat.sum()), flat[full] / flat.sum(), size=size)
    return drawn.reshape(size, *counts.shape)


def _draw_scores(rng: np.random.Generator, histograms: NDArray[Any] | None, size: int) -> NDArray[np.int64] | None:
    """Draw the histograms of each class; with two classes, those of the first mirror those of the second."""
    if histograms is None:
        return None
    coarser = merged(histograms, _bins(len(histograms) - 1))
    rows = np.stack([_draw(rng, row, size) for row in coarser], axis=1)
    if len(histograms) == 3:
        rows[:, 0] = rows[:, 1, ::-1, ::-1]
    return rows


def _bins(classes: int) -> int:
    """Return the number of bins of the resampled scores of a class, a power of two."""
    bins = BINS
    while bins > FEWEST and bins * (classes + 1) > MOST:
        bins //= 2
    return bins


def _percentiles(values: NDArray[Any]) -> Interval:
    """Return the interval of the values along the first axis, without undefined ones."""
    tail = 100 * (1 - LEVEL) / 2
    if values.ndim == 1:
        values = values[~np.isnan(values)]
        return [None, None] if not len(values) else known(np.percentile(values, [tail, 100 - tail]))
    return [_percentiles(column) for column in values.T]
