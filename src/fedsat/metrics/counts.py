"""Everything measured, as views of additive confusion counts (true class × predicted class).

Counts from different samples, clients or batches simply add up; rates are taken at the end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedsat.errors import DataError

Floats = NDArray[np.float64]


def confusion_counts(labels: Tensor, predicted: Tensor, classes: int) -> Tensor:
    """Count label vectors [C, n] into confusion matrices [C, m, m]; entries with a negative label do not count."""
    counted = (labels >= 0).to(torch.int64)
    cells = labels.clamp(min=0) * classes + predicted
    counts = torch.zeros(len(labels), classes * classes, dtype=torch.int64, device=labels.device)
    return counts.scatter_add_(1, cells, counted).view(-1, classes, classes)


@dataclass(frozen=True)
class ClassCounts:
    """What workers report about clients' models: three vectors per client and worker, [K, w, m] (SPEC §3)."""

    predicted: Tensor
    """Z: how often each class was predicted."""
    correct: Tensor
    """TP: how often it was predicted rightly."""
    labels: Tensor
    """T: how many samples of it the worker has."""
    workers: Tensor | None = None
    """Which node each report is from, [K, w], where that is known."""

    def without(self, missing: Tensor) -> ClassCounts:
        """The counts with the reports marked in `missing`, [K, w], as zeros: reports about no samples."""
        gone = missing[..., None]
        predicted, correct, labels = (
            vector.masked_fill(gone, 0) for vector in (self.predicted, self.correct, self.labels)
        )
        return ClassCounts(predicted, correct, labels, self.workers)

    @staticmethod
    def from_confusion(counts: Tensor) -> ClassCounts:
        """The three views of confusion matrices [..., true, predicted]."""
        return ClassCounts(counts.sum(-2), counts.diagonal(dim1=-2, dim2=-1), counts.sum(-1))


@dataclass(frozen=True)
class Evaluation:
    """How a model does on the test set: its confusion matrix and mean loss."""

    confusion: NDArray[np.int64]
    loss: float

    @property
    def accuracy(self) -> float:
        """Share of all samples predicted rightly."""
        return float(np.trace(self.confusion) / self.confusion.sum())

    @property
    def recall(self) -> Floats:
        """Share of each class's samples predicted rightly; NaN for a class the test set does not have."""
        labels = self.confusion.sum(axis=1)
        right = np.diagonal(self.confusion).astype(np.float64)
        return share(right, labels)

    @property
    def balanced_accuracy(self) -> float:
        """Mean recall over the classes."""
        return float(np.nanmean(self.recall))

    @property
    def worst_class(self) -> int:
        """The class with the lowest recall."""
        return int(np.nanargmin(self.recall))

    def expected_client_accuracy(self, class_counts: NDArray[np.int64]) -> Floats:
        """Σ_c p_k(c) · recall_c for every client: its score on fresh data of its own class mix (SPEC §9)."""
        return expected_accuracy(self.recall, class_counts)


def expected_accuracy(recall: Floats, class_counts: NDArray[np.int64]) -> Floats:
    """Σ_c p_k(c) · recall_c over the classes whose recall is known, for every row of class counts."""
    known = ~np.isnan(recall)
    mix = class_counts[:, known].astype(np.float64)
    return share(mix @ recall[known], mix.sum(axis=1))


Assessment = tuple[Evaluation, Floats]
"""How a model does on the test set, and every client's accuracy (NaN where it is not known)."""
ClientAccuracy = Literal["expected", "local"]
"""Clients' accuracy from their class mix and the test recalls, or on their local training samples."""


def share(part: NDArray[Any], whole: NDArray[Any]) -> Floats:
    """part / whole, NaN where there is nothing to take a share of."""
    quotient: Floats = np.divide(part, whole, out=np.full(len(whole), np.nan), where=whole > 0)
    return quotient


def spread(values: Floats) -> dict[str, float]:
    """The lowest, 10th percentile, median and highest of clients' accuracies."""
    known = values[~np.isnan(values)]
    if not len(known):
        raise DataError("no client holds a class that the test set has, so no client's accuracy can be told")
    low, tenth, median, high = np.percentile(known, [0, 10, 50, 100])
    return {"min": float(low), "p10": float(tenth), "median": float(median), "max": float(high)}


def rounds_to_target(rounds: list[int], accuracy: list[float], target: float) -> int | None:
    """The first round from which a running mean of three evaluations stays at or above `target` (SPEC §9)."""
    reached = None
    for place in range(2, len(accuracy)):
        if float(np.mean(accuracy[place - 2 : place + 1])) < target:
            reached = None
        elif reached is None:
            reached = rounds[place]
    return reached
