"""Measures of a classifier, computed from counts: Z, TP and T of each class, and histograms of the scores.

Every function takes `Counts` with any leading axes: clients, resamples, or both. Measures of each class return
[..., m], and are NaN for a class without test samples. The others return [...].
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsat.metrics.histograms import middles

Floats = NDArray[np.float64]
Measured = Callable[["Counts"], Floats]

CALIBRATION_BINS = 15
"""Bins of equal width for calibration, as in Guo et al., On Calibration of Modern Neural Networks, 2017."""


@dataclass(frozen=True)
class Counts:
    """What all measures are computed from. Counts of different samples, clients and batches add up."""

    confusion: NDArray[Any]
    """Number of samples by true class (rows) and predicted class (columns), [..., m, m]."""
    histograms: NDArray[Any] | None = None
    """Histograms of the scores, [..., m + 1, BINS, 2]; see `fedsat.metrics.histograms`."""

    @cached_property
    def predicted(self) -> Floats:
        """Z: how often each class was predicted."""
        return np.asarray(self.confusion.sum(-2), dtype=np.float64)

    @cached_property
    def correct(self) -> Floats:
        """TP: how often it was predicted correctly."""
        return np.diagonal(self.confusion, axis1=-2, axis2=-1).astype(np.float64)

    @cached_property
    def labels(self) -> Floats:
        """T: how many samples it has."""
        return np.asarray(self.confusion.sum(-1), dtype=np.float64)

    @property
    def samples(self) -> Floats:
        """The number of samples, [...]."""
        return np.asarray(self.labels.sum(-1))

    @property
    def negative(self) -> Floats:
        """Samples of other classes, by the score of each class, [..., m, BINS]."""
        return self._histograms[..., :-1, :, 0]

    @property
    def positive(self) -> Floats:
        """Samples of each class, by their score of that class, [..., m, BINS]."""
        return self._histograms[..., :-1, :, 1]

    @property
    def confidence(self) -> Floats:
        """Wrong and right predictions by the score of the predicted class, [..., BINS, 2]."""
        return self._histograms[..., -1, :, :]

    @property
    def _histograms(self) -> Floats:
        if self.histograms is None:
            raise ValueError("these counts have no histograms of scores")
        return np.asarray(self.histograms, dtype=np.float64)


def share(part: Floats, whole: Floats) -> Floats:
    """Return part / whole, or NaN where the whole is 0."""
    part, whole = np.broadcast_arrays(part, whole)
    quotient: Floats = np.divide(part, whole, out=np.full(whole.shape, np.nan), where=whole > 0)
    return quotient


def accuracy(counts: Counts) -> Floats:
    """Share of the samples that are predicted correctly."""
    return share(counts.correct.sum(-1), counts.samples)


def recall(counts: Counts) -> Floats:
    """TP / T: share of a class's samples that are predicted correctly; the sensitivity."""
    return share(counts.correct, counts.labels)


def precision(counts: Counts) -> Floats:
    """TP / Z: share of the predictions of a class that are correct; 0 for a class that is never predicted."""
    return _present(np.nan_to_num(share(counts.correct, counts.predicted)), counts)


def specificity(counts: Counts) -> Floats:
    """Share of the samples of other classes that are not predicted as this class."""
    others = counts.samples[..., None] - counts.labels
    wrong = counts.predicted - counts.correct
    return _present(share(others - wrong, others), counts)


def f1(counts: Counts) -> Floats:
    """2 TP / (Z + T): the harmonic mean of precision and recall."""
    return _present(share(2 * counts.correct, counts.predicted + counts.labels), counts)


def mcc(counts: Counts) -> Floats:
    """Matthews' correlation between labels and predictions, for any number of classes (Gorodkin, 2004).

    It is 0 if only one class is predicted, and NaN if the samples are of one class.
    """
    samples, labels, predicted = counts.samples, counts.labels, counts.predicted
    spread = samples**2 - (labels**2).sum(-1)
    product = spread * (samples**2 - (predicted**2).sum(-1))
    covariance = samples * counts.correct.sum(-1) - (labels * predicted).sum(-1)
    found = np.nan_to_num(share(covariance, np.sqrt(np.maximum(product, 0))))
    return np.where(spread > 0, found, np.nan)


def auroc(counts: Counts) -> Floats:
    """Area under the ROC curve: how often a sample of the class has a higher score for it than one of another class.

    Samples in the same bin count one half, like ties.
    """
    below = np.cumsum(counts.negative, -1) - counts.negative / 2
    pairs = counts.positive.sum(-1) * counts.negative.sum(-1)
    return share((counts.positive * below).sum(-1), pairs)


def average_precision(counts: Counts) -> Floats:
    """Σ (R_i − R_{i−1}) P_i over thresholds from high to low: the area under the precision-recall curve, in steps."""
    hits = np.cumsum(counts.positive[..., ::-1], -1)
    chosen = hits + np.cumsum(counts.negative[..., ::-1], -1)
    gained = counts.positive[..., ::-1] * hits / np.maximum(chosen, 1)
    return share(gained.sum(-1), counts.positive.sum(-1))


def sensitivity_at(required: float) -> Measured:
    """Return the measure for a specificity: the highest recall at a threshold with at least this specificity."""

    def sensitivity(counts: Counts) -> Floats:
        alarms = share(np.cumsum(counts.negative[..., ::-1], -1), counts.negative.sum(-1)[..., None])
        found = share(np.cumsum(counts.positive[..., ::-1], -1), counts.positive.sum(-1)[..., None])
        allowed = alarms <= 1 - required + 1e-12
        best: Floats = np.where(allowed, found, 0.0).max(-1)
        known = (counts.positive.sum(-1) > 0) & (counts.negative.sum(-1) > 0)
        return np.where(known, best, np.nan)

    sensitivity.__doc__ = f"Highest recall of the class at a threshold with a specificity of {required:.0%} or more."
    return sensitivity


def brier(counts: Counts) -> Floats:
    """Mean squared difference between the probability of the class and 1 for its samples, 0 for others."""
    p = middles(counts.positive.shape[-1])
    squares = counts.positive * (1 - p) ** 2 + counts.negative * p**2
    return _present(share(squares.sum(-1), counts.samples[..., None]), counts)


def calibration_error(counts: Counts) -> Floats:
    """Mean difference between the probability of the class and how often it is right, in bins of equal width."""
    return _present(expected_error(counts.negative, counts.positive), counts)


def ece(counts: Counts) -> Floats:
    """Expected calibration error: mean difference between confidence and accuracy, in bins of equal width."""
    return expected_error(counts.confidence[..., 0], counts.confidence[..., 1])


def expected_error(negative: Floats, positive: Floats) -> Floats:
    """Return Σ_b |Σ p − hits| / n over bins of equal width, for histograms [..., BINS]."""
    p = middles(positive.shape[-1])
    starts = np.searchsorted((p * CALIBRATION_BINS).astype(np.int64), np.arange(CALIBRATION_BINS))
    expected = np.add.reduceat((negative + positive) * p, starts, axis=-1)
    happened = np.add.reduceat(positive, starts, axis=-1)
    return share(np.abs(expected - happened).sum(-1), (negative + positive).sum(-1))


def _present(values: Floats, counts: Counts) -> Floats:
    """Return the values, NaN for classes without samples."""
    return np.where(counts.labels > 0, values, np.nan)
