"""FedSat's prediction-sensitive loss (paper, eq. 4–5; SPEC §1): frequent mistakes cost more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import torch
from torch import Tensor

from fedsat.algorithms.objective import Objective, cross_entropy, objectives
from fedsat.errors import UsageError
from fedsat.options import Option
from fedsat.tree import Tree, expand

if TYPE_CHECKING:
    from fedsat.algorithms.base import Batch, Outputs, Task


@objectives.register("psl")
@dataclass(frozen=True)
class PredictionSensitiveLoss(Objective):
    """Cross-entropy times a cost that grows with how often the client makes that very mistake (FedSat)."""

    epsilon1: Annotated[float, Option("ε₁, cost of the rarest mistake", at_least=0)] = 1.0
    epsilon2: Annotated[float, Option("ε₂, cost of the most frequent mistake", at_least=0)] = 2.0
    over: Annotated[
        Literal["errors", "all"],
        Option("cells of M that min and max run over; all, with the diagonal, is the paper's letter"),
    ] = "errors"
    source: Annotated[
        Literal["training", "evaluation"],
        Option("M from the training batches, or from one pass of the received model at the round's start"),
    ] = "training"
    memory: Annotated[float, Option("share of M carried to the client's next round", at_least=0, at_most=1)] = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.epsilon2 < self.epsilon1:
            raise UsageError(
                f"objective.epsilon2 is {self.epsilon2:g}; it must be at least epsilon1 = {self.epsilon1:g}"
            )

    def initial_state(self, classes: int) -> Tree:
        """An empty M; nothing where no memory is asked for."""
        return {"mistakes": torch.zeros(classes, classes)} if self.memory > 0 else {}

    def begin(self, task: Task, state: Tree) -> Tree:
        """M at the start of a round [C, m, m]: the remembered share, plus the received model's predictions if asked."""
        clients, classes = task.class_counts.shape
        mistakes = torch.zeros(clients, classes, classes, device=task.class_counts.device)
        if self.memory > 0:
            mistakes = self.memory * state["mistakes"]
        if self.source == "evaluation":
            params, buffers = expand(task.start.params, clients), expand(task.start.buffers, clients)
            for batch in task.examples():
                predicted = task.network(params, buffers, batch.x).logits.argmax(-1)
                mistakes = count(mistakes, torch.add(predicted, batch.y, alpha=classes), batch.real)
        return {"mistakes": mistakes}

    def loss(self, carry: Tree, outputs: Outputs, batch: Batch) -> tuple[Tensor, Tree]:
        """cs(l, l̂) · CE for each sample; the batch is counted into M before its costs are read."""
        losses = cross_entropy(outputs.logits, batch.y)
        with torch.no_grad():
            mistakes, classes = carry["mistakes"], outputs.logits.shape[-1]
            cells = torch.add(outputs.logits.argmax(-1), batch.y, alpha=classes)
            if self.source == "training":
                mistakes = count(mistakes, cells, batch.real)
            own_costs = self.costs(mistakes.to(losses.dtype)).flatten(1).gather(1, cells)
        return own_costs * losses, {"mistakes": mistakes}

    def end(self, carry: Tree) -> Tree:
        """M itself, if the next round is to remember a share of it."""
        return dict(carry) if self.memory > 0 else {}

    def costs(self, mistakes: Tensor) -> Tensor:
        """The cost matrix C = [cs] of M, [C, m, m]: 1 on the diagonal, ε₁…ε₂ elsewhere."""
        classes, compared = mistakes.shape[-1], mistakes
        if self.over == "errors" and classes > 1:
            # From the first cell to the last but one, every (m+1)th is on the diagonal: the first column of this view.
            compared = mistakes.flatten(1)[:, :-1].view(-1, classes - 1, classes + 1)[..., 1:]
        lowest, highest = compared.amin((-2, -1), keepdim=True), compared.amax((-2, -1), keepdim=True)
        span = highest - lowest
        share = torch.where(span > 0, (mistakes - lowest) / span, 0.0)
        costs = self.epsilon1 + share * (self.epsilon2 - self.epsilon1)
        costs.diagonal(dim1=-2, dim2=-1).fill_(1.0)
        return costs


def count(mistakes: Tensor, cells: Tensor, real: Tensor) -> Tensor:
    """M [C, m, m] with a batch's real samples counted into their cells, true class · m + predicted class."""
    return mistakes.flatten(1).scatter_add(1, cells, real.to(mistakes.dtype)).view_as(mistakes)
