"""An aggregator: the geometric median of the updates, which a minority of malicious clients cannot move far.

fedsat run --with aggregator:GeometricMedian --attack sign-flip --attackers 0.2
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from fedsat.algorithms import Aggregator
from fedsat.options import Option
from fedsat.tree import Tree, norms, tree_map, weighted_sum


@dataclass(frozen=True)
class GeometricMedian(Aggregator):
    """The geometric median of the updates (Pillutla et al. 2022), by a few steps of Weiszfeld's algorithm."""

    selects: ClassVar[bool] = True

    steps: Annotated[int, Option("steps of Weiszfeld's algorithm", at_least=1)] = 4

    def select(self, client_updates: Tree, weights: Tensor) -> Tensor:
        """Divide each weight by the distance to the centre, normalise, and repeat with the new centre."""
        found = weights
        for _ in range(self.steps):
            apart = tree_map(torch.sub, client_updates, weighted_sum(client_updates, found))
            found = weights / norms(apart).clamp(min=1e-6).to(weights)
            found = found / found.sum()
        return found

    def total(self, tree: Tree, weights: Tensor) -> Tree:
        """Return the number of clients times the centre, so that sums are robust as well."""
        return tree_map(lambda tensor: len(weights) * tensor, self.centre(tree, weights))
