"""Evaluations: how a model performs on the test set, and for every client."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedsat.errors import UsageError

Floats = NDArray[np.float64]
ClientAccuracy = Literal["expected", "test-split", "local"]
"""Clients' accuracy: `expected` from their class mix and the test recalls, `test-split` on the test set divided among
them, or on their `local` training samples."""
Predict = Callable[[], tuple[Floats, NDArray[np.int64]]]
"""Returns the class probabilities of the test samples, [n, m], and their labels, [n]."""


@dataclass(frozen=True)
class Evaluation:
    """How a model performs on the test set, and for every client."""

    confusion: NDArray[np.int64]
    """Number of test samples by true class (rows) and predicted class (columns)."""
    loss: float
    """Mean cross-entropy on the test set."""
    client_accuracies: Floats = field(default_factory=lambda: np.empty(0))
    """Every client's accuracy; NaN if unknown."""
    predict: Predict | None = field(default=None, repr=False, compare=False)
    """Computes `scores` and `labels` when a metric needs them; None if the test samples are on the nodes."""

    @property
    def accuracy(self) -> float:
        """Share of the test samples that are predicted correctly."""
        return float(np.trace(self.confusion) / self.confusion.sum())

    @property
    def recall(self) -> Floats:
        """Share of each class's samples that are predicted correctly; NaN for a class without test samples."""
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

    @cached_property
    def _predicted(self) -> tuple[Floats, NDArray[np.int64]]:
        if self.predict is None:
            raise UsageError("scores are not available: the nodes keep the test samples and send counts only")
        return self.predict()

    @property
    def scores(self) -> Floats:
        """Class probabilities of the test samples, [n, m]; computed on first use."""
        return self._predicted[0]

    @property
    def labels(self) -> NDArray[np.int64]:
        """Labels of the test samples, [n], in the order of `scores`."""
        return self._predicted[1]

    def expected_client_accuracy(self, class_counts: NDArray[np.int64]) -> Floats:
        """Return Σ_c p_k(c) · recall_c for every client: its accuracy on new data with its class mix."""
        return expected_accuracy(self.recall, class_counts)


def expected_accuracy(recall: Floats, class_counts: NDArray[np.int64]) -> Floats:
    """Return Σ_c p_k(c) · recall_c over the classes whose recall is known, for every row of class counts."""
    known = ~np.isnan(recall)
    mix = class_counts[:, known].astype(np.float64)
    return share(mix @ recall[known], mix.sum(axis=1))


def accuracy_by_client(counts: NDArray[np.int64]) -> Floats:
    """Return each client's accuracy from its confusion matrix, [N, m, m]; NaN for a client without samples."""
    return share(np.trace(counts, axis1=1, axis2=2), counts.sum(axis=(1, 2)))


def share(part: NDArray[Any], whole: NDArray[Any]) -> Floats:
    """Return part / whole, or NaN where the whole is 0."""
    quotient: Floats = np.divide(part, whole, out=np.full(len(whole), np.nan), where=whole > 0)
    return quotient
