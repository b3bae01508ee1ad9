"""Noise for differential privacy: repeatable in simulations, unpredictable on real nodes.

Anyone who knows the seed can subtract the noise of a simulation. Real nodes and servers therefore use the operating
system's secure random numbers. Both are floating-point samplers: they do not defend against attacks on the last bits
of a float (Mironov 2012).
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


class Source:
    """Random numbers in [0, 1), and noise made from them."""

    def uniform(self, size: int) -> Floats:
        """Draw numbers from [0, 1)."""
        raise NotImplementedError

    def normal(self, size: int) -> Floats:
        """Draw from the normal distribution with mean 0 and variance 1 (Box and Muller 1958)."""
        half = -(-size // 2)
        lengths, angles = np.sqrt(-2 * np.log1p(-self.uniform(half))), 2 * np.pi * self.uniform(half)
        return np.concatenate([lengths * np.cos(angles), lengths * np.sin(angles)])[:size]

    def discrete(self, sigma: float, size: int) -> Counts:
        """Draw integers y with P(y) ∝ e^{−y²/2σ²} (Canonne, Kamath and Steinke 2020, algorithm 3).

        Candidates from the discrete Laplace distribution, the difference of two geometric variables, are accepted with
        probability e^{−(|y| − σ²/t)²/2σ²}.
        """
        drawn = np.empty(0, dtype=np.int64)
        scale = np.floor(sigma) + 1
        while len(drawn) < size:
            tries = 2 * (size - len(drawn)) + 8
            first, second = (np.floor(-scale * np.log1p(-self.uniform(tries))) for _ in range(2))
            found = first - second
            accepted = self.uniform(tries) < np.exp(-((np.abs(found) - sigma**2 / scale) ** 2) / (2 * sigma**2))
            drawn = np.concatenate([drawn, found[accepted].astype(np.int64)])
        return drawn[:size]


class Seeded(Source):
    """Noise as a function of seed, purpose and place, for simulations."""

    def __init__(self, draws: np.random.Generator) -> None:
        self._draws = draws

    def uniform(self, size: int) -> Floats:
        """Draw numbers from [0, 1)."""
        return self._draws.random(size)

    def normal(self, size: int) -> Floats:
        """Draw from the normal distribution with mean 0 and variance 1."""
        return self._draws.standard_normal(size)


class Secure(Source):
    """Noise from the operating system's secure random numbers, for real nodes."""

    def uniform(self, size: int) -> Floats:
        """Draw numbers from [0, 1) with 53 random bits each."""
        bits = np.frombuffer(os.urandom(8 * size), dtype="<u8").astype(np.uint64)
        return np.asarray((bits >> np.uint64(11)) * 2.0**-53, dtype=np.float64)


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
