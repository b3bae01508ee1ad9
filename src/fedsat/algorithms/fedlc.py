"""FedLC (Zhang et al. 2022): local training on logits calibrated by the client's class counts.

Let n_i be the client's number of samples of class i. Local training uses the logits f_i − τ n_i^{−1/4}. A class that
the client lacks has an infinite margin: it is excluded from the loss and its logit gets no gradient. Evaluation uses
the unmodified logits f.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor

from fedsat.algorithms.base import Algorithm, Batch, Outputs, Task, algorithms
from fedsat.algorithms.objective import Objective, cross_entropy, objectives
from fedsat.options import Option
from fedsat.tree import Tree


@objectives.register("logit-calibration")
@dataclass(frozen=True)
class LogitCalibration(Objective):
    """Cross-entropy of logits minus a margin that is larger for the client's rarer classes (FedLC)."""

    tau: Annotated[float, Option("τ, scale of the margins τ n^(−1/4)", at_least=0)] = 0.5
    variant: Annotated[
        Literal["softmax", "paper"],
        Option("softmax, or the paper's form without the true class in the denominator, which has no minimum"),
    ] = "softmax"

    def note(self, class_counts: Tensor) -> str | None:
        """Report clients with a single class: their loss is 0 for any output."""
        single = int(((class_counts > 0).sum(1) == 1).sum())
        return f"{single} clients have only one class and learn nothing with logit calibration" if single else None

    def begin(self, task: Task, state: Tree) -> Tree:
        """Compute the margins of each client's classes, [C, m]."""
        del state
        counts = task.class_counts.to(torch.float64)
        return {"margin": torch.where(counts > 0, self.tau * counts.clamp(min=1) ** -0.25, torch.inf)}

    def loss(self, carry: Tree, outputs: Outputs, batch: Batch) -> tuple[Tensor, Tree]:
        """Return −log( e^{g_y} / Σ_i e^{g_i} ), where g = f − margin; the paper's form omits i = y from the sum."""
        calibrated = outputs.logits - carry["margin"].to(outputs.logits.dtype).unsqueeze(1)
        if self.variant == "softmax":
            losses = cross_entropy(calibrated, batch.y)
        else:
            several = (carry["margin"].isfinite().sum(1) > 1).view(-1, 1, 1)
            true = batch.y.unsqueeze(-1) == torch.arange(calibrated.shape[-1], device=batch.y.device)
            others = calibrated.masked_fill(true & several, -torch.inf).logsumexp(-1)
            losses = others - calibrated.gather(-1, batch.y.unsqueeze(-1)).squeeze(-1)
        # The label of a padding entry may be a class that the client lacks, whose loss is infinite.
        return losses.masked_fill(~batch.real, 0.0), carry


@algorithms.register("fedlc")
@dataclass(frozen=True)
class FedLC(Algorithm):
    """FedAvg trained on logits calibrated by the client's class counts (Zhang et al. 2022)."""

    objective: Annotated[Objective, Option("loss of a sample", among=objectives)] = LogitCalibration()
