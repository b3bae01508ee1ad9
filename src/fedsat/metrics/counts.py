"""Confusion counts (true class × predicted class). Counts of different samples, clients and batches add up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


def confusion_counts(labels: Tensor, predicted: Tensor, classes: int) -> Tensor:
    """Count label vectors [C, n] into confusion matrices [C, m, m]; entries with a negative label do not count."""
    counted = (labels >= 0).to(torch.int64)
    cells = labels.clamp(min=0) * classes + predicted
    counts = torch.zeros(len(labels), classes * classes, dtype=torch.int64, device=labels.device)
    return counts.scatter_add_(1, cells, counted).view(-1, classes, classes)


@dataclass(frozen=True)
class ClassCounts:
    """What workers report about clients' models: three vectors per client and worker, [K, w, m]."""

    predicted: Tensor
    """Z: how often each class was predicted."""
    correct: Tensor
    """TP: how often it was predicted correctly."""
    labels: Tensor
    """T: how many samples of it the worker has."""
    workers: Tensor | None = None
    """Which node each report is from, [K, w], if known."""

    def without(self, missing: Tensor) -> ClassCounts:
        """Return the counts with zeros (reports about no samples) in place of the `missing` reports, a mask [K, w]."""
        gone = missing[..., None]
        predicted, correct, labels = (
            vector.masked_fill(gone, 0) for vector in (self.predicted, self.correct, self.labels)
        )
        return ClassCounts(predicted, correct, labels, self.workers)

    def to(self, device: torch.device | str) -> ClassCounts:
        """Return the counts on a device."""
        workers = None if self.workers is None else self.workers.to(device)
        return ClassCounts(self.predicted.to(device), self.correct.to(device), self.labels.to(device), workers)

    def take(self, order: list[int]) -> ClassCounts:
        """Return the reports on the models at the given positions, in that order."""
        workers = None if self.workers is None else self.workers[order]
        return ClassCounts(self.predicted[order], self.correct[order], self.labels[order], workers)

    @staticmethod
    def of(parts: Sequence[ClassCounts]) -> ClassCounts:
        """Join the reports on several models."""
        predicted, correct, labels = (
            torch.cat([getattr(part, name) for part in parts]) for name in ("predicted", "correct", "labels")
        )
        return ClassCounts(predicted, correct, labels)

    @staticmethod
    def from_confusion(counts: Tensor) -> ClassCounts:
        """Return the three vectors of confusion matrices [..., true, predicted]."""
        return ClassCounts(counts.sum(-2), counts.diagonal(dim1=-2, dim2=-1), counts.sum(-1))


def rounds_to_target(rounds: list[int], accuracy: list[float], target: float) -> int | None:
    """Return the first round from which a running mean of three evaluations stays at or above `target`."""
    reached = None
    for place in range(2, len(accuracy)):
        if float(np.mean(accuracy[place - 2 : place + 1])) < target:
            reached = None
        elif reached is None:
            reached = rounds[place]
    return reached
