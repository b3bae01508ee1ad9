"""MOON (Li, He, Song 2021): representations are drawn to the global model's, away from the client's last ones.

With z the representation that the model in training has of a sample, and z_glob, z_prev those of the received
model and of the client's own model after its last participation:

    ℓ = CE + μ · (−log( e^{cos(z, z_glob)/τ} / (e^{cos(z, z_glob)/τ} + e^{cos(z, z_prev)/τ}) ))

The representation is what the last linear layer reads. The authors put a projection head before that layer,
for every method they compare: the models' option `projection`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from fedsat.algorithms.base import Algorithm, Batch, LocalResult, Model, Outputs, Task, algorithms
from fedsat.options import Option
from fedsat.tree import State, expand


@algorithms.register("moon")
@dataclass(frozen=True)
class Moon(Algorithm):
    """FedAvg, drawing representations to the global model's by contrast (Li et al. 2021)."""

    mu: Annotated[float, Option("μ, weight of the contrastive term", at_least=0)] = 1.0
    temperature: Annotated[float, Option("τ, temperature of the similarities", above=0)] = 0.5

    uses_features: ClassVar[bool] = True

    def initial_client_state(self, model: Model) -> State:
        """The received model: z_prev = z_glob, and the term's gradient is zero, as if it were left out."""
        return {"previous": model.params, "previous_buffers": model.buffers}

    def penalty(self, task: Task, carry: State, outputs: Outputs, batch: Batch) -> Tensor:
        """μ · log(1 + e^{(cos(z, z_prev) − cos(z, z_glob))/τ}); only z carries a gradient."""
        del carry
        clients = len(batch.y)
        with torch.no_grad():
            received = task.network(expand(task.start.params, clients), expand(task.start.buffers, clients), batch.x)
            previous = task.network(task.state["previous"], task.state["previous_buffers"], batch.x)
            apart = _unit(previous) - _unit(received)  # exactly 0 while both are the same model
        difference = (_unit(outputs) * apart).sum(-1)
        return self.mu * functional.softplus(difference / self.temperature)

    def end(self, task: Task, carry: State, result: LocalResult) -> tuple[State, State]:
        """The client keeps its model as local training left it."""
        del task, carry
        return {"previous": result.params, "previous_buffers": result.buffers}, {}


def _unit(outputs: Outputs) -> Tensor:
    """The representations of a batch, scaled to length 1: their scalar products are cosines."""
    if outputs.features is None:
        raise ValueError("the engine was not asked for features")
    return functional.normalize(outputs.features, dim=-1, eps=1e-8)
