"""FedLADA (Sun et al. 2023): local AMSGrad steps combined with the mean direction of the last round.

    m ← β₁ m + (1−β₁) g     u ← β₂ u + (1−β₂) g²     v̂ ← max(v̂, u)        (AMSGrad, no bias correction)
    θ ← θ − η (α m/√v̂ + (1−α) g_a)

In every round, m starts at 0, and u and v̂ start at the server's v. Afterwards v is the mean of the v̂, and g_a is the
mean step direction, (Θ − θ_k)/(η K_k). Clients do not upload g_a because the server knows η and K_k.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated

import torch
from torch import Tensor

from fedsat.algorithms.base import (
    Algorithm,
    LocalResult,
    Model,
    Server,
    Task,
    Updates,
    algorithms,
    descend,
    step_direction,
)
from fedsat.algorithms.weighting import Uniform, Weighting, weightings
from fedsat.options import Option
from fedsat.tree import State, Tree, expand, tree_map, zeros_like


@algorithms.register("fedlada")
@dataclass(frozen=True)
class FedLADA(Algorithm):
    """Local AMSGrad combined with the mean direction of the last round (Sun et al. 2023)."""

    weighting: Annotated[Weighting, Option("weight of a client", among=weightings)] = Uniform()
    alpha: Annotated[float, Option("α, share of the local adaptive direction", above=0, at_most=1)] = 0.1
    beta1: Annotated[float, Option("β₁, decay of the first moment", at_least=0, below=1)] = 0.9
    beta2: Annotated[float, Option("β₂, decay of the second moment", at_least=0, at_most=1)] = 0.99
    epsilon: Annotated[float, Option("ε; the second moment starts at ε²", at_least=1e-18)] = 1e-8

    @property
    def refuses(self) -> Mapping[str, str]:
        """Refuse momentum and other optimizers, because the method has its own moments."""
        return {"momentum": "its own first moment is beta1", "optimizer": "its moments make the step"}

    def initial_memory(self, model: Model) -> State:
        """Return v = ε² and g_a = 0."""
        second = tree_map(lambda p: torch.full_like(p, self.epsilon**2), model.params)
        return {"second_moment": second, "direction": zeros_like(model.params)}

    def broadcast(self, server: Server) -> State:
        """Send v and g_a."""
        return server.memory

    def begin(self, task: Task) -> State:
        """Start with m = 0 and u = v̂ = v."""
        second = tree_map(torch.clone, expand(task.received["second_moment"], len(task.class_counts)))
        return {"first": zeros_like(second), "second": second, "largest": second}

    def step(self, task: Task, carry: State, params: Tree, grads: Tree) -> tuple[Tree, State]:
        """Take the step θ ← θ − η (α m/√v̂ + (1−α) g_a), where m and v̂ are moments of the clipped, decayed gradient."""
        grads = task.optimizer.gradient(params, grads)
        first = tree_map(lambda m, g: self.beta1 * m + (1 - self.beta1) * g, carry["first"], grads)
        second = tree_map(lambda u, g: self.beta2 * u + (1 - self.beta2) * g * g, carry["second"], grads)
        largest = tree_map(torch.maximum, carry["largest"], second)
        amended = tree_map(
            lambda m, v, g_a: self.alpha * m / v.sqrt() + (1 - self.alpha) * g_a,
            first,
            largest,
            task.received["direction"],
        )
        return descend(params, amended, task.lr), {"first": first, "second": second, "largest": largest}

    def end(self, task: Task, carry: State, result: LocalResult) -> tuple[State, State]:
        """Upload v̂ and keep nothing."""
        del task, result
        return {}, {"second_moment": carry["largest"]}

    def aggregate(self, server: Server, updates: Updates, weights: Tensor) -> Server:
        """Update Θ as in FedAvg, v ← Σ w_k v̂_k and g_a ← Σ w_k (Θ − θ_k)/(η K_k)."""
        directions = step_direction(server.model.params, updates.model.params, updates, updates.steps)
        memory = {
            "second_moment": self.aggregator.centre(updates.uploads["second_moment"], weights),
            "direction": self.aggregator.centre(directions, weights),
        }
        return replace(super().aggregate(server, updates, weights), memory=memory)
