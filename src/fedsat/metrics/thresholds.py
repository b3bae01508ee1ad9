"""Thresholds on the probability of a class, for a given sensitivity on validation samples.

The threshold of a class for the sensitivity s is the largest one that at least s of the class's validation samples
reach. It is read from the histograms of scores, so it is the lower edge of a bin.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedsat.errors import UsageError, unknown
from fedsat.metrics.histograms import lower_edges
from fedsat.metrics.measures import Counts, Floats

LEVELS = 100
"""Sensitivities with a threshold: 1 %, 2 %, …, 100 %."""
FEW = 20
"""With fewer validation samples of a class, its threshold depends on single samples."""

Sensitivity = float | Mapping[str, float]
"""A sensitivity to reach: of classes by their names, or one number; see `Thresholds.at`."""


@dataclass(frozen=True)
class Thresholds:
    """The thresholds of each class, from the validation samples of a run."""

    samples: tuple[int, ...]
    """The number of validation samples of each class."""
    levels: tuple[tuple[float, ...], ...]
    """The thresholds of each class for the sensitivities 1 % to 100 %; none for a class without samples."""

    @classmethod
    def of(cls, histograms: NDArray[np.int64]) -> Thresholds:
        """Return the thresholds by histograms of validation scores, [m + 1, BINS, 2]."""
        positive = Counts(np.empty((0, 0)), histograms).positive
        return cls(tuple(int(row.sum()) for row in positive), tuple(map(_levels, positive)))

    def to_json(self) -> str:
        """Return the thresholds as JSON."""
        return json.dumps({"samples": self.samples, "levels": self.levels})

    @classmethod
    def from_json(cls, text: str) -> Thresholds:
        """Read what `to_json` returned; raise a `ValueError`, `KeyError` or `TypeError` for anything else."""
        table = json.loads(text)
        found = cls(tuple(map(int, table["samples"])), tuple(tuple(map(float, row)) for row in table["levels"]))
        if len(found.samples) != len(found.levels) or {len(row) for row in found.levels} - {0, LEVELS}:
            raise ValueError(f"thresholds: expected {LEVELS} for each class")
        return found

    def at(self, sensitivity: Sensitivity, class_names: Sequence[str]) -> Floats:
        """Return each class's threshold for a given sensitivity, [m]; NaN for a class without one.

        One number is for every class. With two classes, it is for the one with fewer validation samples, because a
        threshold of one of two classes decides about both.
        """
        if not isinstance(sensitivity, Mapping):
            both = len(class_names) == 2
            wanted = [class_names[int(np.argmin(self.samples))]] if both else class_names
            sensitivity = dict.fromkeys(wanted, sensitivity)
        found = np.full(len(class_names), np.nan)
        for name, share in sensitivity.items():
            if name not in class_names:
                raise unknown("class", name, class_names)
            if not 0 < share <= 1:
                raise UsageError(f"sensitivity is {share:g}; it must be a share, such as 0.9 for 90 %")
            place = list(class_names).index(name)
            if not self.levels[place]:
                raise UsageError(f"there is no threshold for the class {name!r}: no validation sample is of this class")
            found[place] = self.levels[place][math.ceil(share * LEVELS - 1e-9) - 1]
        return found


def decide(probabilities: Floats, thresholds: Floats) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the predicted class of each sample, [n], and whether it reached its threshold.

    Among the classes that reach their threshold, it is the one with the largest probability / threshold. If there is
    none, it is the most probable of the classes without a threshold, or of all if every class has one.
    """
    chosen = ~np.isnan(thresholds)
    ratio = np.where(chosen, probabilities / np.where(chosen, thresholds, 1), -np.inf)
    reached = ratio.max(1) >= 1
    rest = probabilities if chosen.all() else np.where(chosen, -np.inf, probabilities)
    return np.where(reached, ratio.argmax(1), rest.argmax(1)).astype(np.int64), reached


def _levels(positive: Floats) -> tuple[float, ...]:
    total = positive.sum()
    if not total:
        return ()
    reached = np.cumsum(positive[::-1])[::-1]  # samples at or above the lower edge of each bin
    needed = np.ceil(np.arange(1, LEVELS + 1) * total / LEVELS - 1e-9)
    bins = [int(np.flatnonzero(reached >= count)[-1]) for count in needed]
    # The next number below an edge, so that rounding does not keep a sample at the edge from reaching it.
    return tuple(float(np.nextafter(lower_edges()[place], 0)) for place in bins)
