"""FedSat: the prediction-sensitive loss, a correction of client drift, and prioritized-class weights.

The loss is the objective `psl`, the weights are the weighting `pwa`; both live in files of their own because
they can be put on any method. What is left is the correction (paper, eq. 6–8; SPEC §2):

    θ ← θ − η (∇L_PS + γ (v_t − v_k))

v_t is the direction in which the federation moved in the last round, v_k the client's own. What a round's clients go
along is the mean of g_k + γ (v_t − v_k), so v_{t+1} = γ v_t + mean(g_k − γ v_k): momentum while nobody has a v_k yet,
later a running mean of gradients out of which γ times what clients said last is taken.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch
from torch import Tensor

from fedsat.algorithms.aggregator import DampedMean
from fedsat.algorithms.base import (
    Algorithm,
    LocalResult,
    Model,
    Server,
    Task,
    Updates,
    algorithms,
    step_direction,
)
from fedsat.algorithms.objective import Objective, objectives
from fedsat.algorithms.psl import PredictionSensitiveLoss
from fedsat.algorithms.pwa import PrioritizedClassWeights
from fedsat.algorithms.weighting import Weighting, weightings
from fedsat.options import Option
from fedsat.tree import State, Tree, tree_map, zeros_like


@algorithms.register("fedsat")
@dataclass(frozen=True)
class FedSat(Algorithm):
    """Prediction-sensitive loss, correction of client drift, prioritized-class weights."""

    objective: Annotated[Objective, Option("what a sample costs", among=objectives)] = PredictionSensitiveLoss()
    weighting: Annotated[Weighting, Option("how much a client weighs", among=weightings)] = PrioritizedClassWeights()
    correction: Annotated[bool, Option("whether client drift is corrected", switch=True)] = True
    gamma: Annotated[float, Option("γ, strength of the correction", at_least=0)] = 0.9
    scale: Annotated[
        Literal["gradient", "paper"],
        Option("units of v: one step's gradient, or the paper's letter, which is far smaller"),
    ] = "gradient"
    inertia: Annotated[float, Option("share of the former v_t that stays in the next", at_least=0, below=1)] = 0.0

    def initial_memory(self, model: Model) -> State:
        """v_0 = 0."""
        return {"direction": zeros_like(model.params)} if self.correction else {}

    def broadcast(self, server: Server) -> State:
        """v_t: a client that was not called in the last round could not compute it."""
        return server.memory

    def initial_client_state(self, model: Model) -> State:
        """v_k = 0 before the first participation."""
        return {"direction": zeros_like(model.params)} if self.correction else {}

    def begin(self, task: Task) -> State:
        """γ (v_t − v_k), which stays the same through the round; for eq. 8, room for the last gradient."""
        if not self.correction:
            return {}
        drift = tree_map(
            lambda ours, own: self.gamma * (ours - own), task.received["direction"], task.state["direction"]
        )
        return {"drift": drift, "gradient": zeros_like(drift)} if self.scale == "paper" else {"drift": drift}

    def pull(self, task: Task, carry: State, params: Tree) -> Tree | None:
        """θ ← θ − η (∇L + γ (v_t − v_k))."""
        del task, params
        return carry.get("drift")

    def step(self, task: Task, carry: State, params: Tree, grads: Tree) -> tuple[Tree, State]:
        """The step, and for eq. 8 its gradient."""
        params, carry = super().step(task, carry, params, grads)
        return params, {**carry, "gradient": grads} if "gradient" in carry else carry

    @property
    def descends(self) -> bool:
        """Yes, but for eq. 8, which needs the gradient itself."""
        return type(self).step is FedSat.step and not (self.correction and self.scale == "paper")

    def end(self, task: Task, carry: State, result: LocalResult) -> tuple[State, State]:
        """v_k: the mean raw gradient of the round, or the paper's eq. 8."""
        if not self.correction:
            return {}, {}
        if self.scale == "paper":
            own = tree_map(
                lambda v_k, v_t, g: v_k - v_t + task.lr * g,
                task.state["direction"],
                task.received["direction"],
                carry["gradient"],
            )
        else:
            along = step_direction(task.start.params, result.params, task.lr, result.steps)
            own = tree_map(torch.sub, along, carry["drift"])
        return {"direction": own}, {}

    def aggregate(self, server: Server, updates: Updates, weights: Tensor) -> Server:
        """The weighted update, and v_{t+1} from it."""
        moved = super().aggregate(server, updates, weights)
        if not self.correction:
            return moved
        if self.scale == "paper":  # v = (η/E)(Θ_{t+1} − Θ_t)
            factor = -updates.lr / updates.epochs
        else:  # v = (Θ_t − Θ_{t+1}) / (η_g η K̄), K̄ the weighted mean of the steps
            steps = float((weights * updates.steps).sum())
            factor = 1 / (self.server_lr * updates.lr * steps)
        direction = tree_map(lambda old, new: factor * (old - new), server.model.params, moved.model.params)
        if self.inertia:  # a round's clients are a sample; what several rounds agree on swings less
            direction = tree_map(
                lambda now, former: now.lerp(former, self.inertia), direction, server.memory["direction"]
            )
        return replace(moved, memory={"direction": direction})


algorithms.preset(
    "fedsat:robust",
    of="fedsat",
    summary="FedSat against malicious clients: workers' medians, a filter by own classes, damped updates",
    weighting=PrioritizedClassWeights(statistics="median", min_recall=0.9),
    aggregator=DampedMean(),
)
algorithms.preset(
    "fedsat:paper",
    of="fedsat",
    summary="FedSat by the letter of its paper; but for normalised weights and guards against division by zero",
    gamma=1.0,
    scale="paper",
    objective=PredictionSensitiveLoss(over="all", source="evaluation", tau=0.0),
    weighting=PrioritizedClassWeights(priority="hard", weights="product", fnr="paper", min_effective=0.0, sigma=1.0),
)
