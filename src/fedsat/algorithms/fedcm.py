"""FedCM (Xu et al. 2021): local steps mixed with the direction of the last global update.

    θ ← θ − η (α ∇L + (1 − α) Δ_t)

Δ_t is the mean direction of the clients' steps in the last round, (Θ − θ_k)/(η K_k), in units of a gradient. Δ_1 = 0.
Since Δ_t contains Δ_{t−1}, this is momentum, which clients apply at every step and the server keeps between rounds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated

from torch import Tensor

from fedsat.algorithms.base import Algorithm, Model, Server, Task, Updates, algorithms, step_direction
from fedsat.algorithms.weighting import Uniform, Weighting, weightings
from fedsat.options import Option
from fedsat.tree import State, Tree, tree_map, zeros_like


@algorithms.register("fedcm")
@dataclass(frozen=True)
class FedCM(Algorithm):
    """Local steps mixed with the direction of the last global update (Xu et al. 2021)."""

    weighting: Annotated[Weighting, Option("weight of a client", among=weightings)] = Uniform()
    alpha: Annotated[float, Option("α, share of the client's own gradient", above=0, at_most=1)] = 0.1

    @property
    def refuses(self) -> Mapping[str, str]:
        """Refuse local momentum, because the global direction takes its place."""
        return {"momentum": "the global direction takes its place"}

    def initial_memory(self, model: Model) -> State:
        """Return Δ_1 = 0."""
        return {"direction": zeros_like(model.params)}

    def broadcast(self, server: Server) -> State:
        """Send Δ_t."""
        return server.memory

    def step(self, task: Task, carry: State, params: Tree, grads: Tree) -> tuple[Tree, State]:
        """Take the step along α ∇L + (1 − α) Δ_t."""
        mixed = tree_map(lambda g, d: self.alpha * g + (1 - self.alpha) * d, grads, task.received["direction"])
        return super().step(task, carry, params, mixed)

    def aggregate(self, server: Server, updates: Updates, weights: Tensor) -> Server:
        """Update Θ as in FedAvg, and Δ ← Σ w_k (Θ − θ_k)/(η K_k)."""
        directions = step_direction(server.model.params, updates.model.params, updates, updates.steps)
        memory = {"direction": self.aggregator.centre(directions, weights)}
        return replace(super().aggregate(server, updates, weights), memory=memory)
