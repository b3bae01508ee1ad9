"""FedAvgM (Hsu et al. 2019): FedAvg with server momentum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from fedsat.algorithms.base import Algorithm, Model, Server, Updates, algorithms
from fedsat.options import Option
from fedsat.tree import State, tree_map, zeros_like


@algorithms.register("fedavgm")
@dataclass(frozen=True)
class FedAvgM(Algorithm):
    """FedAvg with server momentum (Hsu et al. 2019)."""

    momentum: Annotated[float, Option("β, momentum; steps grow to η/(1−β) in the long run", at_least=0, below=1)] = 0.9
    nesterov: Annotated[bool, Option("Nesterov momentum, better under strong skew, instead of plain momentum")] = True

    @property
    def uses_mean_only(self) -> bool:
        """True: the server computes v from the mean."""
        return True

    def initial_memory(self, model: Model) -> State:
        """Return v = 0."""
        return {"momentum": zeros_like(model.params)}

    def aggregate(self, server: Server, updates: Updates, weights: Tensor) -> Server:
        """Update v ← β v + Δ, then Θ ← Θ + η_g v (Nesterov: Θ + η_g (Δ + β v)), with Δ = Σ_k w_k (θ_k − Θ)."""
        update = self.update(server.model, updates, weights)
        momentum = tree_map(lambda v, d: self.momentum * v + d, server.memory["momentum"], update)
        ahead = tree_map(lambda v, d: d + self.momentum * v, momentum, update) if self.nesterov else momentum
        return Server(self.advance(server.model, ahead, updates, weights), {"momentum": momentum})
