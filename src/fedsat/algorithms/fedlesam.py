"""FedLESAM (Fan et al. 2024): sharpness-aware minimisation with a perturbation estimated from global models.

    θ ← θ − η ∇L(θ + ε)          ε = ρ (Θ_old − Θ)/‖Θ_old − Θ‖

Θ_old is the global model that the client received when it last took part. Since then the global model has moved along
−(Θ_old − Θ), so ε points where the global loss is higher. It is constant during the round and needs no extra pass. At a
client's first participation, ε = 0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import torch

from fedsat.algorithms.base import Algorithm, LocalResult, Model, Task, algorithms
from fedsat.algorithms.fedsam import of_length
from fedsat.algorithms.weighting import Uniform, Weighting, weightings
from fedsat.options import Option
from fedsat.tree import State, Tree, expand, tree_map


@algorithms.register("fedlesam")
@dataclass(frozen=True)
class FedLESAM(Algorithm):
    """FedAvg with gradients at a point further back on the path of the global model (Fan et al. 2024)."""

    weighting: Annotated[Weighting, Option("weight of a client", among=weightings)] = Uniform()
    rho: Annotated[float, Option("ρ, length of the perturbation", at_least=0)] = 0.1

    def initial_client_state(self, model: Model) -> State:
        """Return the received model. Then the perturbation is zero."""
        return {"received": model.params}

    def begin(self, task: Task) -> State:
        """Compute ε."""
        climb = tree_map(torch.sub, task.state["received"], task.start.params)
        return {"perturbation": of_length(self.rho, climb)}

    def perturbation(self, task: Task, carry: State, params: Tree, gradient: Callable[[], Tree]) -> Tree:
        """Return ε."""
        del task, params, gradient
        return carry["perturbation"]

    def end(self, task: Task, carry: State, result: LocalResult) -> tuple[State, State]:
        """Keep the received model for the client's next participation."""
        del carry
        return {"received": expand(task.start.params, len(result.steps))}, {}
