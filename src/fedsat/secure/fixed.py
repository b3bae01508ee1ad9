"""Real numbers as integers modulo 2^64, whose sums are exact."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Words = NDArray[np.uint64]

FRACTION = 32
"""Bits after the binary point: a number is rounded by at most 2^-33."""

LARGEST = 2.0**16
"""The largest number that can be sent. Sums of up to 2^15 numbers do not overflow."""


def encode(values: Floats) -> Words:
    """Return numbers as fixed-point integers modulo 2^64."""
    if not (np.isfinite(values).all() and float(np.abs(values).max(initial=0)) <= LARGEST):
        raise ValueError(f"a number is not finite, or above {LARGEST:g}")
    return np.rint(values * 2.0**FRACTION).astype(np.int64).view(np.uint64)


def decode(words: Words) -> Floats:
    """Return the numbers of a sum of fixed-point integers."""
    return words.view(np.int64).astype(np.float64) / 2.0**FRACTION
