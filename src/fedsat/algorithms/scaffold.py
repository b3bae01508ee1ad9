"""SCAFFOLD (Karimireddy et al. 2020): control variates correct the drift of local steps.

    θ ← θ − η (∇L − c_k + c)            c_k: the client's control variate, c: the mean over all clients

After every round, c is the mean of the c_k of all N clients, regardless of who participated. The model is averaged
uniformly, like c. Otherwise the two would aim at different minima.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

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
    full_gradient,
    pulled,
    received_model,
    step_direction,
)
from fedsat.algorithms.weighting import Uniform, Weighting, weightings
from fedsat.options import Option
from fedsat.tree import State, Tree, tree_map, zeros_like


@algorithms.register("scaffold")
@dataclass(frozen=True)
class Scaffold(Algorithm):
    """Local steps corrected by control variates (Karimireddy et al. 2020)."""

    weighting: Annotated[Weighting, Option("weight of a client", among=weightings)] = Uniform()
    controls: Annotated[
        Literal["I", "II"],
        Option("c_k from the full gradient at the received model, an extra pass (I), or from the steps taken (II)"),
    ] = "II"

    constant_pull: ClassVar[str] = "correction"

    @property
    def follows_from_model(self) -> frozenset[str]:
        """With option II, c_k⁺ − c_k = (Θ − θ_k)/(η K_k) − c."""
        return frozenset({"control_change"} if self.controls == "II" else ())

    def initial_memory(self, model: Model) -> State:
        """Return c = 0."""
        return {"control": zeros_like(model.params)}

    def broadcast(self, server: Server) -> State:
        """Send c."""
        return server.memory

    def initial_client_state(self, model: Model) -> State:
        """Return c_k = 0."""
        return {"control": zeros_like(model.params)}

    def begin(self, task: Task) -> State:
        """Compute c − c_k, which is added to every gradient (Karimireddy et al. 2020, eq. 3).

        With option I, the new c_k is known before training.
        """
        carry = {"correction": tree_map(torch.sub, task.received["control"], task.state["control"])}
        if self.controls == "II":
            return carry
        costs = self.objective.begin(task, task.state["objective"])
        return {**carry, "control": full_gradient(task, self.objective, received_model(task), costs)}

    def start_of_update(self, task: Task, steps: Tensor) -> Tree:
        """Return Θ − η A_K c, because the server knows c."""
        return pulled(task, task.received["control"], steps)

    def end(self, task: Task, carry: State, result: LocalResult) -> tuple[State, State]:
        """Set c_k⁺ (eq. 4): ∇L(Θ) (option I) or c_k − c + (Θ − θ_k)/(η K_k) (option II). Upload c_k⁺ − c_k."""
        if self.controls == "I":
            control = carry["control"]
        else:
            along = step_direction(task.start.params, result.params, task, result.steps)
            control = tree_map(torch.sub, along, carry["correction"])
        return {"control": control}, {"control_change": tree_map(torch.sub, control, task.state["control"])}

    def aggregate(self, server: Server, updates: Updates, weights: Tensor) -> Server:
        """Update Θ as in FedAvg and c ← c + (1/N) Σ_k (c_k⁺ − c_k), where N counts all clients."""
        moved = super().aggregate(server, updates, weights)
        changes = self.aggregator.total(updates.uploads["control_change"], weights)
        control = tree_map(lambda c, sums: c + sums / updates.population, server.memory["control"], changes)
        return replace(moved, memory={"control": control})
