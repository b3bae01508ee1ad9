"""An objective: the focal loss, in which samples that are already recognised count less.

fedsat run --algorithm fedavg --with objective:Focal --set focus=1.0
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from fedsat import Objective
from fedsat.algorithms import Batch, Outputs
from fedsat.algorithms.objective import cross_entropy
from fedsat.options import Option
from fedsat.tree import Tree


@dataclass(frozen=True)
class Focal(Objective):
    """Cross-entropy in which easy samples count less (Lin et al. 2017)."""

    focus: Annotated[float, Option("γ, how much less they count; 0: cross-entropy", at_least=0)] = 2.0

    def loss(self, carry: Tree, outputs: Outputs, batch: Batch) -> tuple[Tensor, Tree]:
        """Return −(1 − p)^γ log p of the true class, [C, B]."""
        loss = cross_entropy(outputs.logits, batch.y)
        return (1 - torch.exp(-loss)) ** self.focus * loss, carry
