"""FedRS (Li and Zhan 2021): a softmax that restricts the updates of classes that the client lacks.

Local training uses the logits α_i f_i, with α_i = 1 for the client's classes and α_i = α < 1 for the others. Their
gradient is smaller by the same factor, so the rows of missing classes in the last layer move less. Evaluation uses the
unmodified logits f.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import torch
from torch import Tensor

from fedsat.algorithms.base import Algorithm, algorithms
from fedsat.algorithms.objective import Objective, cross_entropy, objectives
from fedsat.options import Option
from fedsat.tree import Tree

if TYPE_CHECKING:
    from fedsat.algorithms.base import Batch, Outputs, Task


@objectives.register("restricted-softmax")
@dataclass(frozen=True)
class RestrictedSoftmax(Objective):
    """Cross-entropy of logits that are scaled down for classes that the client lacks (FedRS)."""

    alpha: Annotated[float, Option("α, factor on the logits of missing classes", at_least=0, at_most=1)] = 0.5
    scale: Annotated[
        Literal["missing", "share"],
        Option("scale missing classes only (paper), or every class by its share, from α to 1 (authors' code)"),
    ] = "missing"

    def begin(self, task: Task, state: Tree) -> Tree:
        """Compute α_i of each client's classes, [C, m]: for "share", α + (1 − α) n_i/max n."""
        del state
        counts = task.class_counts.to(torch.float64)
        held = counts / counts.amax(1, keepdim=True) if self.scale == "share" else (counts > 0).to(counts)
        return {"factor": self.alpha + (1 - self.alpha) * held}

    def loss(self, carry: Tree, outputs: Outputs, batch: Batch) -> tuple[Tensor, Tree]:
        """Return −log softmax(α ⊙ f)[y]."""
        return cross_entropy(outputs.logits * carry["factor"].to(outputs.logits.dtype).unsqueeze(1), batch.y), carry


@algorithms.register("fedrs")
@dataclass(frozen=True)
class FedRS(Algorithm):
    """FedAvg trained with smaller logits of the classes that a client lacks (Li and Zhan 2021)."""

    objective: Annotated[Objective, Option("loss of a sample", among=objectives)] = RestrictedSoftmax()
