"""FedSAM (Qu et al. 2022): local steps of sharpness-aware minimisation.

    θ ← θ − η ∇L(θ + ε)          ε = ρ ∇L(θ)/‖∇L(θ)‖

θ + ε is, to first order, the point with the highest loss of the batch within the distance ρ from θ. Both gradients are
of the same batch, so a step costs twice as much as one of FedAvg. The norm is over all parameters of the client.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import torch

from fedsat.algorithms.base import Algorithm, Task, algorithms
from fedsat.algorithms.weighting import Uniform, Weighting, weightings
from fedsat.options import Option
from fedsat.tree import State, Tree, norms, per_client, tree_map


@algorithms.register("fedsam")
@dataclass(frozen=True)
class FedSAM(Algorithm):
    """FedAvg with gradients at the worst point within a distance ρ, by the client's own loss (Qu et al. 2022)."""

    weighting: Annotated[Weighting, Option("weight of a client", among=weightings)] = Uniform()
    rho: Annotated[float, Option("ρ, length of the perturbation", at_least=0)] = 0.1

    def perturbation(self, task: Task, carry: State, params: Tree, gradient: Callable[[], Tree]) -> Tree:
        """Return ρ ∇L(θ)/‖∇L(θ)‖."""
        del task, carry, params
        return of_length(self.rho, gradient())


def of_length(rho: float, direction: Tree) -> Tree:
    """Return ρ d/‖d‖ for each client, or 0 where d = 0."""
    lengths = norms(direction)
    factors = torch.where(lengths > 0, rho / lengths, 0.0)
    return tree_map(lambda d: per_client(factors, d) * d, direction)
