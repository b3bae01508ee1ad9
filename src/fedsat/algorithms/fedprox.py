"""FedProx (Li et al. 2020): a proximal term keeps local models close to the received model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fedsat.algorithms.base import Algorithm, Task, algorithms
from fedsat.options import Option
from fedsat.tree import State, Tree, tree_map


@algorithms.register("fedprox")
@dataclass(frozen=True)
class FedProx(Algorithm):
    """FedAvg with (μ/2)‖θ − Θ‖² added to every client's loss (Li et al. 2020)."""

    mu: Annotated[float, Option("μ, strength of the proximal term", at_least=0)] = 0.01

    def pull(self, task: Task, carry: State, params: Tree) -> Tree:
        """Return μ (θ − Θ), the gradient of the proximal term. It is also exact at θ = Θ."""
        del carry
        return tree_map(lambda y, x: self.mu * (y - x), params, task.start.params)
