"""Objectives: the loss of each sample in local training. Every method accepts one: `--set objective=psl`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from fedsat.options import Option, check
from fedsat.registry import Registry
from fedsat.tree import Tree, expand

if TYPE_CHECKING:
    from fedsat.algorithms.base import Batch, Outputs, Task


@dataclass(frozen=True)
class Objective:
    """The loss of every sample, with state that may change between batches and persist between rounds."""

    uses_received: ClassVar[bool] = False
    """Whether `loss` reads `outputs.received`, the logits of the received model."""

    def __post_init__(self) -> None:
        check(self, "objective")

    def note(self, class_counts: Tensor) -> str | None:
        """Return a note for the user about this objective, given the clients' class counts [N, m], or None."""
        del class_counts
        return None

    def initial_state(self, classes: int) -> Tree:
        """Return the state of a client before its first participation (no client axis)."""
        del classes
        return {}

    def begin(self, task: Task, state: Tree) -> Tree:
        """Prepare local training from the client's state."""
        del task, state
        return {}

    def loss(self, carry: Tree, outputs: Outputs, batch: Batch) -> tuple[Tensor, Tree]:
        """Return the loss of each sample, [C, B], and the carry for the next batch."""
        raise NotImplementedError

    def end(self, carry: Tree) -> Tree:
        """Return the state that the client keeps until its next participation."""
        del carry
        return {}


objectives: Registry[Objective] = Registry("objective", Objective, "objectives")


LabelSmoothing = Annotated[
    float, Option("share of the target that is spread evenly over all classes", at_least=0, below=1)
]


@objectives.register("cross-entropy")
@dataclass(frozen=True)
class CrossEntropy(Objective):
    """Plain cross-entropy."""

    label_smoothing: LabelSmoothing = 0.0

    def loss(self, carry: Tree, outputs: Outputs, batch: Batch) -> tuple[Tensor, Tree]:
        """Return −Σ_i q_i log softmax(logits)_i; q is 1 at y and 0 elsewhere, unless labels are smoothed."""
        return cross_entropy(outputs.logits, batch.y, self.label_smoothing), carry


def objective_losses(
    objective: Objective, task: Task, carry: Tree, outputs: Outputs, batch: Batch
) -> tuple[Tensor, Tree]:
    """Return the objective's `loss`, with the received model's logits in `outputs` if the objective uses them."""
    if objective.uses_received:
        clients, samples = batch.y.shape
        with torch.no_grad():  # all clients received the same model, so their batches are one batch to it
            x = batch.x.flatten(0, 1).unsqueeze(0)
            logits = task.network(expand(task.start.params, 1), expand(task.start.buffers, 1), x).logits
        outputs = replace(outputs, received=logits.reshape(clients, samples, -1))
    return objective.loss(carry, outputs, batch)


LOW = -1e30
"""A logit whose probability is exactly 0. Infinity would give NaN for a client without such classes."""


def divergence(outputs: Outputs, among: Tensor, temperature: float = 1.0) -> Tensor:
    """Return KL(q_glob ‖ q) of each sample, [C, B]; 0 where `among` has no classes.

    q and q_glob are the probabilities that the model in training and the received model assign to the classes in the
    mask `among`, [C, B or 1, m]: the softmax of the logits of these classes alone, divided by the temperature.
    """
    if outputs.received is None:
        raise ValueError("the engine did not return the received model's logits")
    ours, received = (
        (logits / temperature).masked_fill(~among, LOW).log_softmax(-1) for logits in (outputs.logits, outputs.received)
    )
    return (received.exp() * (received - ours) * among).sum(-1)


def cross_entropy(logits: Tensor, labels: Tensor, smoothing: float = 0.0) -> Tensor:
    """Return the cross-entropy of each sample, for any leading axes; q = (1 − smoothing) [i = y] + smoothing/m."""
    flat = functional.cross_entropy(
        logits.flatten(0, -2), labels.flatten(), reduction="none", label_smoothing=smoothing
    )
    return flat.view(labels.shape)
