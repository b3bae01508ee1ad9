"""FedSat: prediction-sensitive loss, correction of client drift, and prioritized-class weights.

The loss is the objective `psl` and the weights are the weighting `pwa`. They have their own modules because every
method can use them. This module adds the correction (paper, eq. 5–7):

    θ ← θ − η (∇L_PS + γ (v_t − v_k))

v_t is the direction of the last global update and v_k is the client's direction. The mean direction of a round is
the mean of g_k + γ (v_t − v_k), so v_{t+1} = γ v_t + mean(g_k − γ v_k). As long as all v_k are zero, this is momentum.
docs/concepts/fedsat.md describes the differences from the paper.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from fedsat.algorithms.aggregator import GuardedMean, usual_length
from fedsat.algorithms.base import (
    Algorithm,
    LocalResult,
    Model,
    Server,
    Task,
    Updates,
    algorithms,
    client_updates,
    full_gradient,
    pulled,
    step_direction,
)
from fedsat.algorithms.objective import Objective, objectives
from fedsat.algorithms.pace import departure, length, lengthening
from fedsat.algorithms.psl import PredictionSensitiveLoss
from fedsat.algorithms.pwa import PrioritizedClassWeights
from fedsat.algorithms.weighting import Weighting, weightings
from fedsat.options import Option
from fedsat.tree import State, Tree, norms, per_client, tree_map, zeros_like

LONGEST = 8.0
"""The length of an update, in usual lengths, above which it is shortened; honest ones have reached 6."""

SLACK = 1 + 1e-6
"""Tolerance so that the mean of equal updates is not too long because of rounding."""


@algorithms.register("fedsat")
@dataclass(frozen=True)
class FedSat(Algorithm):
    """Prediction-sensitive loss, correction of client drift, and prioritized-class weights."""

    objective: Annotated[Objective, Option("loss of a sample", among=objectives)] = PredictionSensitiveLoss()
    weighting: Annotated[Weighting, Option("weight of a client", among=weightings)] = PrioritizedClassWeights()
    correction: Annotated[bool, Option("whether to correct client drift", switch=True)] = True
    gamma: Annotated[float, Option("γ, strength of the correction", at_least=0)] = 0.9
    scale: Annotated[
        Literal["gradient", "paper"],
        Option("units of v: the gradient of one step, or as printed in the paper, which is far smaller"),
    ] = "gradient"
    inertia: Annotated[float, Option("share of the previous v_t kept in the next one", at_least=0, below=1)] = 0.0
    lengthen: Annotated[
        float, Option("largest factor on a step of the server that is short compared with the way so far", at_least=1)
    ] = 1.0

    constant_pull: ClassVar[str] = "drift"

    @property
    def refuses(self) -> Mapping[str, str]:
        """With `scale="paper"`, refuse what eq. 5–7 do not cover: they assume plain SGD steps, counted in epochs."""
        if not (self.correction and self.scale == "paper"):
            return {}
        plain = 'eq. 5–7 assume plain SGD steps; use scale="gradient"'
        return {
            "optimizer": plain,
            "momentum": plain,
            "weight_decay": plain,
            "clip": plain,
            "steps": 'eq. 6 divides by the epochs; use scale="gradient"',
        }

    @property
    def uses_mean_only(self) -> bool:
        """True: v_t is the difference of two global models.

        Only the limits in `update` read single lengths. They never apply if each update is replaced by the mean.
        """
        return True

    def initial_memory(self, model: Model) -> State:
        """Return v_0 = 0, without noise, and the point of departure if steps are lengthened."""
        memory: State = departure(model) if self.lengthen > 1 else {}
        if self.correction:
            one = torch.ones((), dtype=torch.float64, device=next(iter(model.params.values())).device)
            memory |= {"direction": zeros_like(model.params), "signal": {"share": one, "variance": 0 * one}}
        return memory

    def broadcast(self, server: Server) -> State:
        """Send v_t, because clients that were not sampled in the last round cannot compute it."""
        return {name: server.memory[name] for name in ("direction", "signal")} if self.correction else {}

    def initial_client_state(self, model: Model) -> State:
        """Return v_k = 0."""
        return {"direction": zeros_like(model.params)} if self.correction else {}

    def strength(self, memory: State) -> Tensor:
        """Return γ, times the share of v_t that is not noise if there is differential privacy (see `signal`)."""
        return self.gamma * memory["signal"]["share"]

    def begin(self, task: Task) -> State:
        """Compute γ (v_t − v_k), which is added to every gradient of the round."""
        if not self.correction:
            return {}
        gamma = self.strength(task.received)
        drift = tree_map(lambda v_t, v_k: gamma * (v_t - v_k), task.received["direction"], task.state["direction"])
        return {"drift": drift}

    def start_of_update(self, task: Task, steps: Tensor) -> Tree:
        """Return Θ − η γ A_K v_t, because the server knows v_t."""
        if not self.correction:
            return task.start.params
        gamma = self.strength(task.received)
        direction = tree_map(lambda v_t: gamma * v_t, task.received["direction"])
        return pulled(task, direction, steps)

    def end(self, task: Task, carry: State, result: LocalResult) -> tuple[State, State]:
        """Compute v_k: the round's mean gradient without the correction or, as printed, from ∇L(θ_k) (eq. 7)."""
        if not self.correction:
            return {}, {}
        if self.scale == "paper":
            raw = full_gradient(task, self.objective, Model(result.params, result.buffers), result.costs)
            own = tree_map(
                lambda v_k, v_t, g: v_k - v_t + task.lr * g, task.state["direction"], task.received["direction"], raw
            )
        else:
            along = step_direction(task.start.params, result.params, task, result.steps)
            own = tree_map(torch.sub, along, carry["drift"])
        return {"direction": own}, {}

    def update(self, model: Model, updates: Updates, weights: Tensor) -> Tree:
        """Return the aggregate, with limits on the length of each update and on its own (see `reach`).

        Clients add γ v_t to every step, so what one client sends returns with every other client, round after round.
        So no update counts as more than `LONGEST` times as long as is usual, or a client that scales its update could
        bury a run. An aggregate longer than the updates would make the next ones longer still, so it is at most
        as long as the median one. The mean of honest updates is shorter. With secure aggregation or central privacy,
        every update is the mean, and the limits do not apply.
        """
        if not self.correction or self.gamma == 0 or self.scale == "paper":
            return super().update(model, updates, weights)
        sent = client_updates(model, updates)
        usual = reach(norms(sent), updates, weights)
        factors = shortening(norms(sent), LONGEST * usual)
        if bool((factors < 1).any()):
            sent = tree_map(lambda tensor: per_client(factors, tensor) * tensor, sent)
        update = self.aggregator.centre(sent, weights)
        factor = shortening(length(update), (weights * usual).sum() / weights.sum())
        return tree_map(lambda tensor: factor.to(tensor) * tensor, update)

    def aggregate(self, server: Server, updates: Updates, weights: Tensor) -> Server:
        """Update the model by η_g times the (lengthened) aggregate, and compute v_{t+1} from its change."""
        update, memory, longer = self.update(server.model, updates, weights), server.memory, 1.0
        if self.lengthen > 1:
            longer, memory = lengthening(memory, server.model, update, self.lengthen)
            update = tree_map(lambda tensor: longer * tensor, update)
        model = self.advance(server.model, update, updates, weights)
        if not self.correction:
            return Server(model, memory)
        if self.scale == "paper":  # eq. 6: v = (η/E)(Θ_{t+1} − Θ_t)
            factor = -updates.lr / updates.epochs
        else:  # v = (Θ_t − Θ_{t+1}) / (η_g η K̄)
            factor = 1 / (self.server_lr * longer * updates.lr * mean_steps(updates, weights))
        direction = tree_map(lambda old, new: factor * (old - new), server.model.params, model.params)
        if self.inertia:  # average over rounds, because a single round's sample of clients is noisy
            direction = tree_map(lambda now, former: now.lerp(former, self.inertia), direction, memory["direction"])
        signal = self.signal(server, direction, updates, weights)
        return Server(model, {**memory, "direction": direction, "signal": signal})

    def signal(self, server: Server, direction: Tree, updates: Updates, weights: Tensor) -> Tree:
        """Return the share of ‖v_{t+1}‖² that is not noise, 1 − d s²/‖v_{t+1}‖², and s², the noise in a coordinate.

        Clients repeat γ v_t with its noise, but their v_k cancel only what they did themselves. So noise would add up
        to 1/(1 − γ) times its size. With γ times the share, the correction fades as noise takes over. What v_t inherits
        from v_{t−1} counts as well. The server computes all this from what is already noised, at no cost in privacy.
        """
        if not updates.noise or self.scale == "paper":
            return server.memory["signal"]
        new = (1 - self.inertia) * updates.noise / (updates.lr * mean_steps(updates, weights))
        inherited = (1 - self.inertia) * self.strength(server.memory) + self.inertia
        variance = inherited**2 * server.memory["signal"]["variance"] + new**2
        size = sum(tensor.numel() for tensor in direction.values())
        return {"share": (1 - size * variance / length(direction) ** 2).clamp(min=0), "variance": variance}


def mean_steps(updates: Updates, weights: Tensor) -> float:
    """Return K̄, the weighted mean of the clients' (effective) steps."""
    return float((weights * updates.optimizer.effective_steps(updates.steps)).sum())


def reach(lengths: Tensor, updates: Updates, weights: Tensor) -> Tensor:
    """Return the usual ‖θ_k − Θ‖, times max(1, K_k/K̃) because more steps lead farther, [K]; K̃ is the median K.

    Clients that did not move do not count. The result is 0 if no client moved.
    """
    counted = lengths > 0
    if not bool(counted.any()):
        return lengths
    steps = updates.optimizer.effective_steps(updates.steps).to(lengths)
    return usual_length(lengths, weights) * (steps / steps[counted].quantile(0.5)).clamp(min=1)


def shortening(lengths: Tensor, longest: Tensor) -> Tensor:
    """Return the factors by which lengths do not exceed the longest allowed; 1 where there is no limit, 0."""
    return torch.where((longest > 0) & (lengths > SLACK * longest), longest / lengths, 1.0)


algorithms.preset(
    "fedsat:robust",
    of="fedsat",
    summary="FedSat against malicious clients: medians of worker reports, a recall filter, the guarded mean",
    weighting=PrioritizedClassWeights(statistics="median", min_recall=0.9),
    aggregator=GuardedMean(),
)
algorithms.preset(
    "fedsat:paper",
    of="fedsat",
    summary="FedSat as printed in the paper, plus normalised weights and guards against division by zero",
    gamma=1.0,
    scale="paper",
    objective=PredictionSensitiveLoss(epsilon2=2.0, over="all", source="evaluation", tau=0.0),
    weighting=PrioritizedClassWeights(priority="hard", weights="product", fnr="paper", min_effective=0.0, sigma=1.0),
)
