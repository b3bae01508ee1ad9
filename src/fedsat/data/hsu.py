"""Hsu's Dirichlet partition: clients of equal size, each with its own class mix.

T.-M. H. Hsu, H. Qi, M. Brown: Measuring the effects of non-identical data distribution for federated visual
classification, 2019 (arXiv:1909.06335).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedsat.data.partition import Beta, Partition, dirichlet_mixes, distribute, even_sizes, partitions
from fedsat.seeding import Indices


@partitions.register("hsu")
@dataclass(frozen=True)
class Hsu(Partition):
    """Clients of equal size, each with a class mix ~ Dirichlet(β p), for class shares p (Hsu et al. 2019)."""

    beta: Beta = 0.3

    def owners(self, labels: Indices, classes: int, clients: int, rng: np.random.Generator) -> Indices:
        """Draw each client's mix, then let all clients draw their samples at the same time.

        β is the paper's α. The prior p is scaled to sum to m, so that equally frequent classes have Dirichlet(β, …, β).
        """
        counts = np.bincount(labels, minlength=classes)
        mixes = dirichlet_mixes(rng, self.beta * counts / counts.mean(), clients)
        return distribute(labels, draw_samples(mixes, even_sizes(len(labels), clients, rng), counts, rng), rng)


def draw_samples(mixes: NDArray[np.float64], sizes: Indices, counts: Indices, rng: np.random.Generator) -> Indices:
    """Return how many samples of each class every client gets, [clients, classes].

    Every client draws the classes of its samples from its mix. If clients ask for more samples of a class than there
    are, a random part of their requests is granted, and clients draw again without that class. Each turn but the last
    uses up a class, so the number of turns is bounded. The sizes must sum to the number of samples; then every sample
    is assigned.
    """
    given = np.zeros(mixes.shape, np.int64)
    need, left = sizes.copy(), counts.copy()
    while need.any():
        open_ = mixes * (left > 0)
        total = open_.sum(axis=1, keepdims=True)
        # A client whose classes are all used up takes from what is left.
        chances = np.where(total > 0, open_ / np.where(total > 0, total, 1), left / left.sum())
        asked = rng.multinomial(need, chances)
        for label in np.flatnonzero(asked.sum(axis=0) > left):
            asked[:, label] = rng.multivariate_hypergeometric(asked[:, label], left[label], method="marginals")
        given += asked
        need -= asked.sum(axis=1)
        left -= asked.sum(axis=0)
    return given
