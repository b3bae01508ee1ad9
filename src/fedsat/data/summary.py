"""Numbers that say how samples are divided: sizes, classes of each client, and how much clients differ."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedsat.errors import DataError
from fedsat.seeding import Indices


@dataclass(frozen=True)
class Range:
    """Minimum, median and maximum over clients or classes."""

    low: float
    median: float
    high: float

    @classmethod
    def of(cls, values: NDArray[np.integer] | NDArray[np.float64]) -> Range:
        """Return the range of `values`."""
        return cls(float(values.min()), float(np.median(values)), float(values.max()))


@dataclass(frozen=True)
class Summary:
    """Numbers that describe how uneven a federation is."""

    clients: int
    samples: int
    size: Range
    """Samples per client."""
    classes_held: Range
    """Classes per client with at least one sample."""
    effective_classes: Range
    """exp(entropy of a client's class mix): 1 if it has only one class, m if all are equally frequent."""
    largest_share: Range
    """Share of a client's most frequent class."""
    imbalance: Range
    """Ratio of a client's most frequent class to its rarest one."""
    skew: float
    """Mean total variation distance between a client's class mix and the overall one, from 0 (equal) to 1."""
    chance: float
    """About the skew of a random division into clients of the same sizes."""
    class_size: Range
    """Samples per class."""
    holders: Range
    """Clients per class."""
    balance: float
    """Effective number of classes over all clients: m if all are equally frequent."""

    @staticmethod
    def of(counts: Indices) -> Summary:
        """Summarise the samples of each client in each class, [N, m]; clients without any are left out of means."""
        held = counts[counts.sum(axis=1) > 0]
        if not len(held):
            raise DataError("no client has a sample that counts")
        mix, whole = held / held.sum(axis=1, keepdims=True), counts.sum(axis=0) / counts.sum()
        rarest = np.where(held > 0, held, held.max()).min(axis=1)
        return Summary(
            clients=len(counts),
            samples=int(counts.sum()),
            size=Range.of(counts.sum(axis=1)),
            classes_held=Range.of((counts > 0).sum(axis=1)),
            effective_classes=Range.of(effective(mix)),
            largest_share=Range.of(mix.max(axis=1)),
            imbalance=Range.of(held.max(axis=1) / rarest),
            skew=float(np.abs(mix - whole).sum(axis=1).mean() / 2),
            chance=chance_skew(held.sum(axis=1), whole),
            class_size=Range.of(counts.sum(axis=0)),
            holders=Range.of((counts > 0).sum(axis=0)),
            balance=float(effective(whole)),
        )


def chance_skew(sizes: Indices, whole: NDArray[np.float64]) -> float:
    """Return the mean total variation distance between clients with random samples and all clients together.

    A class share p of n samples has the variance p(1 − p)/n, and a normal variable the mean deviation √(2/π) σ.
    """
    deviations = np.sqrt(2 / np.pi * whole * (1 - whole) / sizes[:, None])
    return float(deviations.sum(axis=1).mean() / 2)


def effective(mix: NDArray[np.float64]) -> NDArray[np.float64]:
    """exp(entropy) of class shares [..., m]."""
    found: NDArray[np.float64] = np.exp(-np.sum(mix * np.log(np.where(mix > 0, mix, 1)), axis=-1))
    return found
