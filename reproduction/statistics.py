"""Tests and intervals for differences between methods over settings and seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from fedsat.metrics import Floats

NEMENYI = {2: 1.960, 3: 2.343, 4: 2.569, 5: 2.728, 6: 2.850, 7: 2.949, 8: 3.031, 9: 3.102, 10: 3.164}
"""q_0.05 of the studentized range divided by √2, by the number of methods (Demšar, JMLR 7, 2006, table 5a)."""

STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
"""The 0.975 quantile of Student's t with 1, 2, … degrees of freedom (NIST/SEMATECH e-Handbook, 1.3.6.7.2)."""

RESAMPLES = 10_000
"""Number of bootstrap samples."""


def ranks(values: Floats) -> Floats:
    """Return the ranks of the values along the last axis; the smallest has rank 1, and equal values share a rank."""
    below = (values[..., :, None] > values[..., None, :]).sum(axis=-1)
    equal = (values[..., :, None] == values[..., None, :]).sum(axis=-1)
    found: Floats = below + (equal + 1) / 2
    return found


def spearman(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Return the rank correlation, or None for fewer than three pairs or equal values only."""
    if len(pairs) < 3:
        return None
    first, second = (ranks(np.array(side)) for side in zip(*pairs, strict=True))
    if first.std() == 0 or second.std() == 0:
        return None
    return float(np.corrcoef(first, second)[0, 1])


def friedman(ranked: Floats) -> float:
    """Return the p-value of the Friedman test for ranks [settings, methods]: do the methods differ at all?

    χ² = (k−1) Σ_j (R_j − N(k+1)/2)² / (Σ_ij r_ij² − N k (k+1)²/4), where R_j is the sum of the ranks of a method,
    has k−1 degrees of freedom (Conover, Practical Nonparametric Statistics, 1999; this form allows for ties).
    """
    n, k = ranked.shape
    spread = (ranked**2).sum() - n * k * (k + 1) ** 2 / 4
    if spread == 0:
        return 1.0
    chi2 = (k - 1) * ((ranked.sum(axis=0) - n * (k + 1) / 2) ** 2).sum() / spread
    half = torch.tensor([(k - 1) / 2, chi2 / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))


def critical_difference(settings: int, methods: int) -> float:
    """Return how far two mean ranks must be apart to differ at the 5 % level (Nemenyi): q √(k(k+1)/(6N))."""
    return NEMENYI[methods] * math.sqrt(methods * (methods + 1) / (6 * settings))


def bootstrap_interval(groups: Sequence[Sequence[float]], seed: int = 0) -> tuple[float, float]:
    """Return a 95 % percentile interval of the mean over all values.

    Values of one group depend on each other, so whole groups are drawn with replacement.
    """
    sums, sizes = (np.array([function(group) for group in groups]) for function in (sum, len))
    drawn = np.random.default_rng(seed).integers(len(groups), size=(RESAMPLES, len(groups)))
    means = sums[drawn].sum(axis=1) / sizes[drawn].sum(axis=1)
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)


def student_half_width(values: Sequence[float]) -> float | None:
    """Return half the width of the 95 % interval of the mean, t s/√n, or None for a single value."""
    if len(values) < 2:
        return None
    return STUDENT[len(values) - 2] * float(np.std(values, ddof=1)) / math.sqrt(len(values))
