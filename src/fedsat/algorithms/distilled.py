"""FedSat's prediction-sensitive loss with distillation of the received model.

    loss = cs(l, l̂) · CE(f + a′, l) + λ T² KL(q_glob ‖ q)

The second term keeps what the received model knows of the classes that the client lacks, as in FedVLS, or of all
classes but the true one, as in FedNTD.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import torch
from torch import Tensor

from fedsat.algorithms.objective import divergence, objectives
from fedsat.algorithms.psl import PredictionSensitiveLoss
from fedsat.options import Option
from fedsat.tree import Tree

if TYPE_CHECKING:
    from fedsat.algorithms.base import Batch, Outputs, Task


@objectives.register("psl-distilled")
@dataclass(frozen=True)
class DistilledSensitiveLoss(PredictionSensitiveLoss):
    """FedSat's loss plus distillation of the received model on classes other than the true one."""

    distillation: Annotated[float, Option("λ, weight of the distillation", at_least=0)] = 1.0
    distilled: Annotated[
        Literal["missing", "others"], Option("the classes that the client lacks, or all but the true one")
    ] = "missing"
    temperature: Annotated[float, Option("T, temperature of the distillation", above=0)] = 1.0

    uses_received: ClassVar[bool] = True

    def begin(self, task: Task, state: Tree) -> Tree:
        """Initialise M, the shift, and the mask of the classes that the client lacks, [C, m]."""
        return {**super().begin(task, state), "missing": task.class_counts == 0}

    def loss(self, carry: Tree, outputs: Outputs, batch: Batch) -> tuple[Tensor, Tree]:
        """Return the prediction-sensitive loss of each sample plus λ T² KL(q_glob ‖ q)."""
        among = carry["missing"].unsqueeze(1)
        if self.distilled == "others":
            among = batch.y.unsqueeze(-1) != torch.arange(outputs.logits.shape[-1], device=batch.y.device)
        losses, carry = super().loss(carry, outputs, batch)
        return losses + self.distillation * self.temperature**2 * divergence(outputs, among, self.temperature), carry
