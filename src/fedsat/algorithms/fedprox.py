"""FedProx (Li et al. 2020): a proximal term keeps clients near the model they received."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fedsat.algorithms.base import Algorithm, Task, algorithms, descend
from fedsat.options import Option
from fedsat.tree import State, Tree, tree_map


@algorithms.register("fedprox")
@dataclass(frozen=True)
class FedProx(Algorithm):
    """FedAvg with (μ/2)‖θ − Θ‖² added to every client's loss (Li et al. 2020)."""

    mu: Annotated[float, Option("μ, strength of the proximal term", at_least=0)] = 0.01

    def step(self, task: Task, carry: State, params: Tree, grads: Tree) -> tuple[Tree, State]:
        """θ ← θ − η (∇L + μ (θ − Θ)): the term enters as its gradient, which is exact also at θ = Θ."""
        pulled = tree_map(lambda g, y, x: g + self.mu * (y - x), grads, params, task.start.params)
        return descend(params, pulled, task.lr), carry
