"""FedVLS (Guo et al. 2025): distillation on the classes that a client lacks, and suppression of non-label logits.

Let π_i = n_i/n_k be the client's share of class i, m the number of classes, and B the size of the batch.

    ℓ = CE(f + log π) + λ KL(q_glob ‖ q) + κ Σ_i π_i log( (1/B) Σ_n e^{[y_n ≠ i] (f_ni − log π_i − log m)} )

q and q_glob are the probabilities that the model in training and the received model assign to the vacant classes
(π_i = 0): the softmax of the logits of these classes alone. The last term penalises high logits of a class on samples
of other classes. It is one number for each batch, added to the loss of each sample.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

import torch
from torch import Tensor

from fedsat.algorithms.base import Algorithm, algorithms
from fedsat.algorithms.objective import Objective, cross_entropy, divergence, objectives
from fedsat.options import Option
from fedsat.tree import Tree

if TYPE_CHECKING:
    from fedsat.algorithms.base import Batch, Outputs, Task

TINY = 1e-9
"""Added to shares before the logarithm, as the authors do."""


@objectives.register("vacant-classes")
@dataclass(frozen=True)
class VacantClassDistillation(Objective):
    """Calibrated cross-entropy, distillation on classes that the client lacks, and logit suppression (FedVLS)."""

    lam: Annotated[float, Option("λ, weight of the distillation on vacant classes", at_least=0)] = 1.0
    suppression: Annotated[float, Option("κ, weight of the suppression of non-label logits", at_least=0)] = 0.005

    uses_received: ClassVar[bool] = True

    def begin(self, task: Task, state: Tree) -> Tree:
        """Compute π, [C, m]."""
        del state
        counts = task.class_counts.to(torch.float64)
        return {"share": counts / counts.sum(1, keepdim=True)}

    def loss(self, carry: Tree, outputs: Outputs, batch: Batch) -> tuple[Tensor, Tree]:
        """Return the calibrated cross-entropy of each sample plus the two other terms."""
        share = carry["share"].to(outputs.logits.dtype).unsqueeze(1)
        losses = cross_entropy(outputs.logits + (share + TINY).log(), batch.y)
        suppressed = self._suppression(outputs.logits, share, batch).unsqueeze(1)
        return losses + self.lam * divergence(outputs, share == 0) + self.suppression * suppressed, carry

    def _suppression(self, logits: Tensor, share: Tensor, batch: Batch) -> Tensor:
        """Return the last term of each client without its weight, [C]. A sample of class i counts as e⁰ in its sum."""
        classes = logits.shape[-1]
        others = batch.y.unsqueeze(-1) != torch.arange(classes, device=batch.y.device)
        spread = (logits - (share + TINY).log() + math.log(1 / classes + TINY)) * others
        sums = spread.masked_fill(~batch.real.unsqueeze(-1), -torch.inf).logsumexp(1)
        return (share.squeeze(1) * (sums - batch.real.sum(1, keepdim=True).log())).sum(1)


@algorithms.register("fedvls")
@dataclass(frozen=True)
class FedVLS(Algorithm):
    """FedAvg with distillation on vacant classes and suppression of non-label logits (Guo et al. 2025)."""

    objective: Annotated[Objective, Option("loss of a sample", among=objectives)] = VacantClassDistillation()
