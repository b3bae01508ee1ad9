"""Evaluations: how a model performs on the test set, and for every client."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple, dataclass, field
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedsat.errors import UsageError
from fedsat.metrics.measures import Counts, Floats, share

ClientAccuracy = Literal["expected", "test-split", "local"]
"""Clients' accuracy: `expected` from their class mix and the test recalls, `test-split` on the test set divided among
them, or on their `local` training samples."""
Predict = Callable[[], tuple[Floats, NDArray[np.int64]]]
"""Returns the class probabilities of the test samples, [n, m], and their labels, [n]."""


@dataclass(frozen=True)
class Detail:
    """What an evaluation counts in addition to the confusion matrix, because a metric needs it."""

    scores: bool = False
    """Histograms of the scores."""
    clients: bool = False
    """Every client's confusion matrix; in a simulation, it is known anyway."""
    client_scores: bool = False
    """Every client's histograms of the scores."""

    def __or__(self, other: Detail) -> Detail:
        return Detail(*(one or another for one, another in zip(astuple(self), astuple(other), strict=True)))


NO_DETAIL = Detail()


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
    histograms: NDArray[np.int64] | None = field(default=None, repr=False)
    """Histograms of the test samples' scores, [m + 1, BINS, 2] (`fedsat.metrics.histograms`), if they were counted."""
    client_confusion: NDArray[np.int64] | None = field(default=None, repr=False)
    """Confusion matrices on every client's test or training samples, [N, m, m], if they were counted."""
    client_histograms: NDArray[np.int64] | None = field(default=None, repr=False)
    """Histograms of the scores of the same samples, [N, m + 1, BINS, 2], if they were counted."""
    class_mixes: NDArray[np.int64] | None = field(default=None, repr=False)
    """Class counts of the clients, [N, m], if their counts are expected from the class mix."""

    @cached_property
    def counts(self) -> Counts:
        """The counts of the test set, from which metrics are computed."""
        return Counts(self.confusion, self.histograms)

    @cached_property
    def client_counts(self) -> Counts:
        """The counts of every client, [N, …]: counted, or expected from its class mix and the test confusions."""
        if self.client_confusion is not None:
            return Counts(self.client_confusion, self.client_histograms)
        if self.class_mixes is None:
            raise UsageError("the counts of single clients are not available: the nodes keep them")
        labels = self.confusion.sum(-1, keepdims=True)
        rates = np.divide(self.confusion, labels, out=np.zeros(self.confusion.shape), where=labels > 0)
        return Counts(self.class_mixes[:, :, None] * rates[..., None, :, :])

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
