"""A weighting: the square roots of the clients' sizes, between `samples` and `uniform`.

fedsat run --algorithm fedavg --with weighting:SquareRoot --partition quantity
"""

from dataclasses import dataclass

import torch

from fedsat import Weighting
from fedsat.algorithms import ClientWeights, Updates
from fedsat.metrics import ClassCounts


@dataclass(frozen=True)
class SquareRoot(Weighting):
    """Weights proportional to the square root of the number of samples."""

    def weigh(self, updates: Updates, counts: ClassCounts | None) -> ClientWeights:
        """Return √n_k / Σ_j √n_j."""
        roots = updates.sizes.to(torch.float64).sqrt()
        return ClientWeights(roots / roots.sum())
