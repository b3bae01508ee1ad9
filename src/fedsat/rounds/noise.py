"""Noise for differential privacy: repeatable in simulations, unpredictable on real nodes.

Anyone who knows the seed can subtract the noise of a simulation. Real nodes and servers therefore use the operating
system's secure random numbers. Their noise is an integer multiple of a grid step, and so are the values it is added to:
the last bits of a sum of floats would show what the noise was added to (Mironov 2012).
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from fedsat.seeding import generator

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]


GRID = 2.0**20
"""Grid steps per standard deviation of secure noise on real numbers."""

CHUNK = 2**18
"""Number of candidates that are drawn at once."""


class Source:
    """Random numbers in [0, 1), and noise made from them."""

    def uniform(self, size: int) -> Floats:
        """Draw numbers from [0, 1)."""
        raise NotImplementedError

    def noised(self, values: Floats, noise: float, sensitivity: float) -> Floats:
        """Return a vector plus Gaussian noise with standard deviation `noise` · `sensitivity` in each component."""
        raise NotImplementedError

    def discrete(self, sigma: float, size: int) -> Counts:
        """Draw integers y with P(y) ∝ e^{−y²/2σ²} (Canonne, Kamath and Steinke 2020, algorithm 3).

        Candidates from the discrete Laplace distribution, the difference of two geometric variables, are accepted with
        probability e^{−(|y| − σ²/t)²/2σ²}.
        """
        drawn, missing = list[Counts](), size
        scale = np.floor(sigma) + 1
        while missing > 0:
            tries = min(2 * missing + 8, CHUNK)
            first, second = (np.floor(-scale * np.log1p(-self.uniform(tries))) for _ in range(2))
            found = first - second
            accepted = self.uniform(tries) < np.exp(-((np.abs(found) - sigma**2 / scale) ** 2) / (2 * sigma**2))
            drawn.append(found[accepted].astype(np.int64))
            missing -= len(drawn[-1])
        return np.concatenate(drawn)[:size] if drawn else np.empty(0, dtype=np.int64)


class Seeded(Source):
    """Noise as a function of seed, purpose and place, for simulations."""

    def __init__(self, draws: np.random.Generator) -> None:
        self._draws = draws

    def uniform(self, size: int) -> Floats:
        """Draw numbers from [0, 1)."""
        return self._draws.random(size)

    def noised(self, values: Floats, noise: float, sensitivity: float) -> Floats:
        """Return a vector plus noise of the normal distribution."""
        return values + noise * sensitivity * self._draws.standard_normal(len(values))


class Secure(Source):
    """Noise from the operating system's secure random numbers, for real nodes."""

    def uniform(self, size: int) -> Floats:
        """Draw numbers from [0, 1) with 53 random bits each."""
        bits = np.frombuffer(os.urandom(8 * size), dtype="<u8").astype(np.uint64)
        return np.asarray((bits >> np.uint64(11)) * 2.0**-53, dtype=np.float64)

    def noised(self, values: Floats, noise: float, sensitivity: float) -> Floats:
        """Return a vector, rounded to a grid, plus noise of the discrete Gaussian distribution on this grid.

        Rounding moves each of two vectors of d components by at most √d/2 grid steps, so their distance grows by at
        most √d steps. The noise grows with it.
        """
        step = noise * sensitivity / GRID
        drawn = self.discrete(GRID + noise * np.sqrt(len(values)), len(values))
        return np.asarray((np.rint(values / step) + drawn) * step, dtype=np.float64)


Sources = Callable[..., Source]
"""Returns the source for a purpose and place, such as ("private update", round, client)."""


def seeded(seed: int) -> Sources:
    """Return the sources of a simulation."""
    return functools.partial(_seeded, seed)


def _seeded(seed: int, purpose: str, *path: int) -> Source:
    return Seeded(generator(seed, purpose, *path))


def secure(purpose: str, *path: int) -> Source:
    """Return the source of a real node, which is the same for every purpose."""
    del purpose, path
    return Secure()
