"""Elastic aggregation (Chen et al. 2023): parameters to which the outputs are sensitive change less.

Before training, every client computes its sensitivity at the received model Θ, without labels:

    ω ← μ ω + (1−μ) |∂ mean(F(Θ; batch)²) / ∂Θ|        over its batches, where F are the logits

The server computes Ω = Σ w_k ω_k and scales each element of the update by ζ = 1 + τ − Ω/max Ω, where the maximum is
over the elements of the tensor.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from fedsat.algorithms.base import (
    Algorithm,
    LocalResult,
    Server,
    Task,
    Updates,
    algorithms,
    differentiable,
    gradient,
    received_model,
)
from fedsat.options import Option
from fedsat.tree import State, per_client, tree_map, zeros_like


@algorithms.register("elastic")
@dataclass(frozen=True)
class Elastic(Algorithm):
    """FedAvg with smaller updates of parameters to which the outputs are sensitive (Chen et al. 2023)."""

    tau: Annotated[float, Option("τ, factor on the update of the most sensitive parameter", at_least=0)] = 0.5
    mu: Annotated[float, Option("μ, decay of the sensitivity's running mean over batches", at_least=0, below=1)] = 0.95

    def begin(self, task: Task) -> State:
        """Compute ω in evaluation mode, divided by 1 − μ^B to remove the bias against clients with few batches."""
        model = differentiable(received_model(task))
        sensitivity = zeros_like(model.params)
        batches = torch.zeros(len(task.class_counts), dtype=torch.float64, device=task.class_counts.device)
        for batch in task.examples():
            real = batch.real.sum(1)
            with torch.enable_grad():
                logits = task.network(model.params, model.buffers, batch.x).logits
                squares = logits.square().mean(-1).masked_fill(~batch.real, 0.0)
                grads = gradient(squares.sum(1) / real.clamp(min=1), model.params)
            given = (real > 0).to(batches)  # 0 where a client has no batch left and the batch is padding
            news = (1 - self.mu) * given
            sensitivity = tree_map(
                lambda omega, g, share=news: omega + per_client(share, g) * (g.abs() - omega), sensitivity, grads
            )
            batches += given
        bias = 1 - self.mu ** batches.clamp(min=1)
        return {"sensitivity": tree_map(lambda omega: omega / per_client(bias, omega), sensitivity)}

    def end(self, task: Task, carry: State, result: LocalResult) -> tuple[State, State]:
        """Upload ω and keep nothing."""
        del task, result
        return {}, {"sensitivity": carry["sensitivity"]}

    def aggregate(self, server: Server, updates: Updates, weights: Tensor) -> Server:
        """Update the model: Θ ← Θ + η_g ζ ⊙ Σ_k w_k (θ_k − Θ)."""
        shares = tree_map(self.share, self.aggregator.centre(updates.uploads["sensitivity"], weights))
        update = tree_map(torch.mul, shares, self.update(server.model, updates, weights))
        return Server(self.advance(server.model, update, updates, weights))

    def share(self, sensitivity: Tensor) -> Tensor:
        """Return ζ of a tensor's elements, in [τ, 1 + τ]; 1 if the outputs do not depend on the tensor."""
        largest = sensitivity.amax()
        return torch.where(largest > 0, 1 + self.tau - sensitivity / largest, 1.0)
