"""FedNTD (Lee et al. 2022): distil the received model's knowledge of the classes other than the true one.

    ℓ = CE + β τ² KL(p̃_glob ‖ p̃)

p̃ and p̃_glob are the probabilities that the model in training and the received model assign to the classes other than
the true one: the softmax of their logits divided by τ, without the logit of the true class.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from fedsat.algorithms.base import Algorithm, Batch, Outputs, algorithms
from fedsat.algorithms.objective import Objective, cross_entropy, objectives
from fedsat.options import Option
from fedsat.tree import Tree


@objectives.register("ntd")
@dataclass(frozen=True)
class NotTrueDistillation(Objective):
    """Cross-entropy plus distillation of the received model on the classes other than the true one (FedNTD)."""

    beta: Annotated[float, Option("β, weight of the distillation", at_least=0)] = 1.0
    tau: Annotated[float, Option("τ, temperature of the distillation", above=0)] = 3.0

    uses_received: ClassVar[bool] = True

    def loss(self, carry: Tree, outputs: Outputs, batch: Batch) -> tuple[Tensor, Tree]:
        """Return CE + β τ² KL(p̃_glob ‖ p̃)."""
        if outputs.received is None:
            raise ValueError("the engine did not return the received model's logits")
        ours, received = (self._not_true(logits, batch.y) for logits in (outputs.logits, outputs.received))
        distance = (received.exp() * (received - ours)).sum(-1)
        return cross_entropy(outputs.logits, batch.y) + self.beta * self.tau**2 * distance, carry

    def _not_true(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return log p̃, [C, B, m − 1]; the order of the classes differs from sample to sample."""
        classes = logits.shape[-1]
        others = (labels.unsqueeze(-1) + torch.arange(1, classes, device=labels.device)) % classes
        return (logits.gather(-1, others) / self.tau).log_softmax(-1)


@algorithms.register("fedntd")
@dataclass(frozen=True)
class FedNTD(Algorithm):
    """FedAvg with distillation of the received model on the not-true classes (Lee et al. 2022)."""

    objective: Annotated[Objective, Option("loss of a sample", among=objectives)] = NotTrueDistillation()
