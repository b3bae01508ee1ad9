"""Randomness as a pure function of (seed, purpose, round, client).

No global generator is ever read or seeded, so the order in which engines draw does not matter, and a resumed run draws
what the uninterrupted one would have drawn.
"""

from __future__ import annotations

import zlib

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]


def generator(seed: int, purpose: str, *path: int) -> np.random.Generator:
    """Return the generator of one purpose and place, for example ("batches", round, client)."""
    return np.random.default_rng([seed, zlib.crc32(purpose.encode()), *path])
