"""What all engines agree on about local training."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedsat.algorithms import Updates
from fedsat.errors import TrainingError
from fedsat.tree import State, Tree


@dataclass(frozen=True)
class LocalTraining:
    """How every client trains, whatever the method: E, B, η, augmentation, and the seed of its batches."""

    epochs: int
    batch_size: int
    lr: float
    augment: bool
    seed: int


@dataclass(frozen=True)
class TrainedRound:
    """What an engine brings back from local training."""

    updates: Updates
    states: list[State]
    """Each client's new state, in the order of the updates."""
    losses: Tensor
    """Each client's mean training loss, [K]."""


def check_finite(losses: Tensor, params: Tree, client: int, round_number: int, lr: float) -> None:
    """Stop with the client, round and step at which training left the finite numbers, if it did."""
    bad = torch.nonzero(~torch.isfinite(losses))
    if len(bad) > 0:
        step, what = int(bad[0]) + 1, f"the loss is {float(losses[bad[0]]):g}"
    elif not all(bool(torch.isfinite(tensor).all()) for tensor in params.values()):
        step, what = len(losses), "the weights are not finite"
    else:
        return
    raise TrainingError(
        f"round {round_number}, client {client}, step {step} of {len(losses)}: {what}; "
        f"a smaller --lr (now {lr:g}) or a look at the client's data may help"
    )
