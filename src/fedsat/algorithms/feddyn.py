"""FedDyn (Acar et al. 2021): dynamic linear and quadratic terms in every client's loss.

    θ ← θ − η (∇L + α (θ − Θ + λ_k))          λ_k ← λ_k + θ_k − Θ
    Θ ← mean of the active θ_k + mean of all clients' λ

In the paper's notation, λ_k = −g_k/α. This form is from the authors' code and avoids dividing by α. Clients that never
participated have λ = 0. The server keeps the mean λ, which it computes from the models it receives. At convergence,
∇L_k(Θ) = −α λ_k for every client, and the λ_k sum to zero. So do the gradients: Θ minimises the clients' mean loss.

With `scale_by_size`, α is α_k = α/w_k, where w_k = n_k N/n is the client's size relative to the mean. Then the
n_k ∇L_k(Θ) sum to zero: Θ minimises the mean loss of all samples.
"""

from __future__ import annotations

from dataclasses import dataclass
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
    client_updates,
)
from fedsat.algorithms.weighting import Uniform, Weighting, weightings
from fedsat.options import Option
from fedsat.tree import State, Tree, per_client, tree_map, zeros_like


@algorithms.register("feddyn")
@dataclass(frozen=True)
class FedDyn(Algorithm):
    """Dynamic regularisation that aligns local minima with the global one (Acar et al. 2021)."""

    server_lr: Annotated[float, Option("η_g, always 1 in this method", at_least=1, at_most=1)] = 1.0
    weighting: Annotated[Weighting, Option("weight of a client", among=weightings)] = Uniform()
    alpha: Annotated[float, Option("α, strength of the dynamic regularisation", above=0)] = 0.01
    scale_by_size: Annotated[
        bool, Option("divide α by the client's size relative to the mean: clients count by their samples, not equally")
    ] = False

    @property
    def uses_mean_only(self) -> bool:
        """True: with uniform weights, the sum in λ̄ is a multiple of the mean."""
        return isinstance(self.weighting, Uniform)

    def initial_memory(self, model: Model) -> State:
        """Return the mean of all λ_k, initially 0."""
        return {"mean_dual": zeros_like(model.params)}

    def initial_client_state(self, model: Model) -> State:
        """Return λ_k = 0."""
        return {"dual": zeros_like(model.params)}

    def pull(self, task: Task, carry: State, params: Tree) -> Tree:
        """Return α (θ − Θ + λ_k), or with α_k = α n/(N n_k)."""
        del carry
        away = tree_map(lambda y, x, dual: y - x + dual, params, task.start.params, task.state["dual"])
        if not self.scale_by_size:
            return tree_map(lambda tensor: self.alpha * tensor, away)
        alphas = self.alpha * task.mean_samples / task.class_counts.sum(1).to(torch.float64)
        return tree_map(lambda tensor: per_client(alphas, tensor) * tensor, away)

    def end(self, task: Task, carry: State, result: LocalResult) -> tuple[State, State]:
        """Update λ_k ← λ_k + θ_k − Θ."""
        del carry
        moved = tree_map(torch.sub, result.params, task.start.params)
        return {"dual": tree_map(torch.add, task.state["dual"], moved)}, {}

    def aggregate(self, server: Server, updates: Updates, weights: Tensor) -> Server:
        """Update λ̄ ← λ̄ + (1/N) Σ_k (θ_k − Θ), where N counts all clients, then Θ ← Σ_k w_k θ_k + λ̄."""
        moved = self.aggregator.total(client_updates(server.model, updates), weights)
        mean_dual = tree_map(lambda dual, sums: dual + sums / updates.population, server.memory["mean_dual"], moved)
        mean = super().aggregate(server, updates, weights).model
        return Server(Model(tree_map(torch.add, mean.params, mean_dual), mean.buffers), {"mean_dual": mean_dual})

    def reported_models(self, server: Server) -> dict[str, Model]:
        """Return the mean of the active clients' models, Θ − λ̄, which the authors evaluate."""
        params = tree_map(torch.sub, server.model.params, server.memory["mean_dual"])
        return {"active-mean": Model(params, server.model.buffers)}
