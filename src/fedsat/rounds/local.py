"""Settings and results of local training, common to all engines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fedsat.algorithms import SGD, Model, Server, Updates
from fedsat.errors import TrainingError
from fedsat.rounds.privacy import Privacy
from fedsat.rounds.sampling import local_epochs
from fedsat.rounds.schedules import LrSchedule
from fedsat.seeding import Indices
from fedsat.tree import KeptState, State, Tree, concatenate, finite, tree_map


@dataclass(frozen=True)
class LocalTraining:
    """Settings of local training, the same for every method: E, B, η, augmentation, the seed, the optimizer."""

    epochs: int
    batch_size: int | Literal["all"]
    lr: float
    augment: bool
    seed: int
    stragglers: float = 0.0
    """Share of the clients that complete only some of the epochs or steps."""
    steps: int | None = None
    """Local steps of every client in a round, instead of epochs; small clients go through their samples again."""
    optimizer: SGD = SGD()
    lr_schedule: LrSchedule = LrSchedule()
    rounds: int = 1
    """T, the number of rounds of the run, over which the schedule may extend."""
    privacy: Privacy = Privacy()
    """What clients do to their updates before they send them."""
    secure_aggregation: bool = False
    """Whether the server sees only the sum of the updates."""

    def lr_in(self, round_number: int) -> float:
        """Return η_t, the learning rate of a round."""
        return self.lr * self.lr_schedule.factor(round_number, self.rounds)

    def batch_of(self, size: int) -> int:
        """Return the batch size of a client with `size` samples."""
        return size if self.batch_size == "all" else self.batch_size

    def work_of(self, client: int, round_number: int, size: int) -> tuple[int, int]:
        """Return the epochs that a client with `size` samples begins in a round, and the steps that it takes."""
        batches = -(-size // self.batch_of(size))
        amount = local_epochs(self.seed, round_number, client, self.steps or self.epochs, self.stragglers)
        return (-(-amount // batches), amount) if self.steps else (amount, amount * batches)


@dataclass(frozen=True)
class Request:
    """What a round asks of an engine: to train these clients, of which `states` holds earlier participants'."""

    server: Server
    clients: Indices
    states: Mapping[int, KeptState]
    number: int

    def equals(self, other: Request) -> bool:
        """Whether the other request asks for the same."""
        same = self.server is other.server and self.number == other.number
        return same and np.array_equal(self.clients, other.clients)


@dataclass(frozen=True)
class TrainedRound:
    """The result of a round of local training."""

    updates: Updates
    states: list[State]
    """The new state of each client, in the order of the updates."""
    meters: Tree
    seconds: float = 0.0
    """The run's share of the time if several runs were trained at once, before the round asked for it."""

    @property
    def losses(self) -> Tensor:
        """The mean training loss of each client, [K]."""
        return self.meters["loss"] / self.updates.steps

    def take(self, order: list[int]) -> TrainedRound:
        """Return the clients at the given positions, in that order."""
        if order == list(range(len(self.states))):
            return self
        meters = tree_map(lambda tensor: tensor[order], self.meters)
        return TrainedRound(self.updates.take(order), [self.states[place] for place in order], meters, self.seconds)

    @staticmethod
    def of(parts: Sequence[TrainedRound]) -> TrainedRound:
        """Concatenate the results of several clients."""
        if len(parts) == 1:
            return parts[0]
        updates = [part.updates for part in parts]
        params = concatenate([one.model.params for one in updates])
        joined = replace(
            updates[0],
            clients=torch.cat([one.clients for one in updates]),
            model=Model(params, concatenate([one.model.buffers for one in updates])),
            uploads={name: concatenate([one.uploads[name] for one in updates]) for name in updates[0].uploads},
            sizes=torch.cat([one.sizes for one in updates]),
            steps=torch.cat([one.steps for one in updates]),
        )
        states = [state for part in parts for state in part.states]
        return TrainedRound(joined, states, concatenate([part.meters for part in parts]))


def new_meters(clients: int, device: torch.device) -> Tree:
    """Return meters before the first step: the sum of losses, and the number of steps with a finite sum."""
    return {"loss": torch.zeros(clients, device=device), "finite": torch.zeros(clients, device=device)}


def meter(meters: Tree, losses: Tensor) -> Tree:
    """Add the losses of a step, [C]. Once the sum is not finite, `finite` no longer grows."""
    total = meters["loss"] + losses.to(meters["loss"].dtype)
    return {"loss": total, "finite": meters["finite"] + (total - total == 0)}  # isfinite with two operations, not four


def finite_clients(trained: TrainedRound) -> Tensor:
    """Return a mask [K] of the clients whose losses, models and uploads are all finite."""
    updates = trained.updates
    sent = [updates.model.params, updates.model.buffers, *updates.uploads.values()]
    return finite([{"loss": trained.meters["loss"]}, *sent])


def diverged(trained: TrainedRound, round_number: int) -> TrainingError:
    """Return the error for a round without any finite update; it names the first client and where it diverged."""
    updates, meters, place = trained.updates, trained.meters, 0
    good, steps = int(meters["finite"][place]), int(updates.steps[place])
    what = f"step {good + 1} of {steps}: the loss" if good < steps else f"after {steps} steps: an uploaded value"
    return TrainingError(
        f"round {round_number}, client {int(updates.clients[place])}, {what} is not finite; "
        f"try a smaller --lr (now {updates.lr:g}) or check the client's data"
    )
