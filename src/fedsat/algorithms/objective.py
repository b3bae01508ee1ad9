"""What a sample costs in local training. An objective can be put on any method: `--set objective=psl`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor
from torch.nn import functional

from fedsat.options import Registry, check
from fedsat.tree import Tree

if TYPE_CHECKING:
    from fedsat.algorithms.base import Batch, Outputs, Task


@dataclass(frozen=True)
class Objective:
    """The loss of every sample, with a memory that may change from batch to batch and outlast the round."""

    def __post_init__(self) -> None:
        check(self, "objective")

    def note(self, class_counts: Tensor) -> str | None:
        """What a user should know about this objective on clients with these samples of each class, [N, m]."""
        del class_counts
        return None

    def initial_state(self, classes: int) -> Tree:
        """What a client keeps of the objective before its first participation (no client axis)."""
        del classes
        return {}

    def begin(self, task: Task, state: Tree) -> Tree:
        """Prepare a local round from what the client kept."""
        del task, state
        return {}

    def loss(self, carry: Tree, outputs: Outputs, batch: Batch) -> tuple[Tensor, Tree]:
        """The loss of each sample, [C, B], and the carry for the next batch."""
        raise NotImplementedError

    def end(self, carry: Tree) -> Tree:
        """What the client keeps until its next participation."""
        del carry
        return {}


objectives: Registry[Objective] = Registry("objective", Objective)


@objectives.register("cross-entropy")
@dataclass(frozen=True)
class CrossEntropy(Objective):
    """Plain cross-entropy."""

    def loss(self, carry: Tree, outputs: Outputs, batch: Batch) -> tuple[Tensor, Tree]:
        """−log softmax(logits)[y]."""
        return cross_entropy(outputs.logits, batch.y), carry


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """The cross-entropy of each sample, for any leading axes."""
    flat = functional.cross_entropy(logits.flatten(0, -2), labels.flatten(), reduction="none")
    return flat.view(labels.shape)
