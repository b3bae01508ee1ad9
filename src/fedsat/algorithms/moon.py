"""MOON (Li et al. 2021): contrast the global model's representations with those of the client's last model.

Let z, z_glob and z_prev be a sample's representations in the model being trained, in the received model and in the
client's model after its last participation. The loss is

    ℓ = CE + μ · (−log( e^{cos(z, z_glob)/τ} / (e^{cos(z, z_glob)/τ} + e^{cos(z, z_prev)/τ}) ))

The representation is the input of the last linear layer. The authors insert a projection head before that layer for
every method they compare; here, this is the models' option `projection`.
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
    """FedAvg with a contrastive term that attracts representations to the global model's (Li et al. 2021)."""

    mu: Annotated[float, Option("μ, weight of the contrastive term", at_least=0)] = 1.0
    temperature: Annotated[float, Option("τ, temperature of the similarities", above=0)] = 0.5

    uses_features: ClassVar[bool] = True

    def initial_client_state(self, model: Model) -> State:
        """Return the received model. Then z_prev = z_glob, and the gradient of the term is zero."""
        return {"previous": model.params, "previous_buffers": model.buffers}

    def penalty(self, task: Task, carry: State, outputs: Outputs, batch: Batch) -> Tensor:
        """Return μ · log(1 + e^{(cos(z, z_prev) − cos(z, z_glob))/τ}); only z carries a gradient."""
        del carry
        clients = len(batch.y)
        with torch.no_grad():
            received = task.network(expand(task.start.params, clients), expand(task.start.buffers, clients), batch.x)
            previous = task.network(task.state["previous"], task.state["previous_buffers"], batch.x)
            apart = _unit(previous) - _unit(received)  # exactly 0 if both are the same model
        difference = (_unit(outputs) * apart).sum(-1)
        return self.mu * functional.softplus(difference / self.temperature)

    def end(self, task: Task, carry: State, result: LocalResult) -> tuple[State, State]:
        """Keep the client's model after local training."""
        del task, carry
        return {"previous": result.params, "previous_buffers": result.buffers}, {}


def _unit(outputs: Outputs) -> Tensor:
    """Return the representations scaled to length 1, so that their dot products are cosines."""
    if outputs.features is None:
        raise ValueError("the engine did not return features")
    return functional.normalize(outputs.features, dim=-1, eps=1e-8)
