"""FedSat's prediction-sensitive loss (paper, eq. 3–4), with logits calibrated by the client's class shares.

    loss = cs(l, l̂) · CE(f + a′, l)

The cost cs grows with how often the client predicts l̂ for samples of class l. As printed, every sample of a client
lowers the logits of all classes that the client lacks, so local training forgets them. Therefore logits are shifted by
a_i = τ log(n_i/n_k + s), where n_i/n_k is the client's share of class i. The shift is 0 for a wrongly predicted class
(a′_l̂ = 0): only samples that are mistaken for a missing class lower its logit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import torch
from torch import Tensor

from fedsat.algorithms.objective import LabelSmoothing, Objective, cross_entropy, objectives
from fedsat.errors import UsageError
from fedsat.options import Option
from fedsat.tree import Tree, expand

if TYPE_CHECKING:
    from fedsat.algorithms.base import Batch, Outputs, Task


@objectives.register("psl")
@dataclass(frozen=True)
class PredictionSensitiveLoss(Objective):
    """Cross-entropy times a cost that grows with how often the client makes the same mistake (FedSat)."""

    epsilon1: Annotated[float, Option("ε₁, cost of the rarest mistake", at_least=0)] = 1.0
    epsilon2: Annotated[float, Option("ε₂, cost of the most frequent mistake", at_least=0)] = 4.0
    over: Annotated[
        Literal["errors", "all"],
        Option("cells of M for min and max: mistakes only, or all cells with the diagonal, as printed"),
    ] = "errors"
    source: Annotated[
        Literal["training", "evaluation"],
        Option("M from the training batches, or from one pass of the received model at the start of the round"),
    ] = "training"
    memory: Annotated[float, Option("share of M kept for the client's next round", at_least=0, at_most=1)] = 0.0
    tau: Annotated[
        float, Option("τ, strength of the logit shift by the client's class shares; 0: no shift", at_least=0)
    ] = 1.0
    smoothing: Annotated[float, Option("s, added to the class shares before the logarithm", above=0)] = 0.01
    label_smoothing: LabelSmoothing = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.epsilon2 < self.epsilon1:
            raise UsageError(
                f"objective.epsilon2 is {self.epsilon2:g}; it must be at least epsilon1 = {self.epsilon1:g}"
            )

    def initial_state(self, classes: int) -> Tree:
        """Return an empty M, or nothing if no counts are kept between rounds."""
        return {"mistakes": torch.zeros(classes, classes)} if self.memory > 0 else {}

    def begin(self, task: Task, state: Tree) -> Tree:
        """Initialise M [C, m, m] from the kept counts and, with `source="evaluation"`, from the received model."""
        clients, classes = task.class_counts.shape
        mistakes = torch.zeros(clients, classes, classes, device=task.class_counts.device)
        if self.memory > 0:
            mistakes = self.memory * state["mistakes"]
        if self.source == "evaluation":
            params, buffers = expand(task.start.params, clients), expand(task.start.buffers, clients)
            for batch in task.examples():
                predicted = task.network(params, buffers, batch.x).logits.argmax(-1)
                mistakes = count(mistakes, torch.add(predicted, batch.y, alpha=classes), batch.real)
        return {"mistakes": mistakes, **self._shift(task.class_counts)}

    def _shift(self, class_counts: Tensor) -> Tree:
        """Return a_i = τ log(n_i/n_k + s) for each client, [C, m], or nothing if τ = 0."""
        if self.tau == 0:
            return {}
        counts = class_counts.to(torch.float64)
        shares = counts / counts.sum(1, keepdim=True)
        return {"shift": self.tau * (shares + self.smoothing).log()}

    def loss(self, carry: Tree, outputs: Outputs, batch: Batch) -> tuple[Tensor, Tree]:
        """Return cs(l, l̂) · CE(f + a′, l) for each sample; costs include the counts of the current batch."""
        logits = outputs.logits
        with torch.no_grad():
            mistakes, predicted = carry["mistakes"], logits.argmax(-1)
            cells = torch.add(predicted, batch.y, alpha=logits.shape[-1])
            if self.source == "training":
                mistakes = count(mistakes, cells, batch.real)
            own_costs = self.costs(mistakes.to(logits.dtype)).flatten(1).gather(1, cells)
        if "shift" in carry:
            logits = logits + applied_shift(carry["shift"].to(logits.dtype), predicted, batch.y)
        return own_costs * cross_entropy(logits, batch.y, self.label_smoothing), {**carry, "mistakes": mistakes}

    def end(self, carry: Tree) -> Tree:
        """Keep M if the next round uses a share of it."""
        return {"mistakes": carry["mistakes"]} if self.memory > 0 else {}

    def costs(self, mistakes: Tensor) -> Tensor:
        """Return the cost matrix C = [cs] for M, [C, m, m]: 1 on the diagonal, ε₁ to ε₂ elsewhere."""
        classes, compared = mistakes.shape[-1], mistakes
        if self.over == "errors" and classes > 1:
            # Without the last cell, every (m+1)th cell is on the diagonal: the first column of this view.
            compared = mistakes.flatten(1)[:, :-1].view(-1, classes - 1, classes + 1)[..., 1:]
        lowest, highest = compared.amin((-2, -1), keepdim=True), compared.amax((-2, -1), keepdim=True)
        span = highest - lowest
        share = torch.where(span > 0, (mistakes - lowest) / span, 0.0)
        costs = self.epsilon1 + share * (self.epsilon2 - self.epsilon1)
        costs.diagonal(dim1=-2, dim2=-1).fill_(1.0)
        return costs


def applied_shift(shift: Tensor, predicted: Tensor, labels: Tensor) -> Tensor:
    """Return a′ of each sample, [C, B, m]: the client's shift a [C, m], but 0 for a wrongly predicted class."""
    at_predicted = shift.gather(1, predicted) * (predicted == labels)
    every = shift.unsqueeze(1).expand(*labels.shape, shift.shape[1])
    return every.scatter(2, predicted.unsqueeze(2), at_predicted.unsqueeze(2))


def count(mistakes: Tensor, cells: Tensor, real: Tensor) -> Tensor:
    """Add a batch's real samples to M [C, m, m]; the cell index is true class · m + predicted class."""
    return mistakes.flatten(1).scatter_add(1, cells, real.to(mistakes.dtype)).view_as(mistakes)
