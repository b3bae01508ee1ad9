"""What malicious clients do, simulated: their samples, what they send, what they report as workers.

Who is malicious is drawn once for a run. Attackers follow the method but for what is said here, and keep the state
that honest training left them: only what leaves them is false. What a method uploads besides the model stays honest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import numpy as np
import torch
from torch import Tensor

from fedsat.algorithms import Model, Updates
from fedsat.data import Federation
from fedsat.metrics import ClassCounts
from fedsat.options import Option, Registry, check
from fedsat.seeding import Indices, generator
from fedsat.tree import Tree, tree_map


@dataclass(frozen=True)
class Attack:
    """Nobody attacks."""

    def __post_init__(self) -> None:
        check(self, "attack")

    def poison(self, federation: Federation, attackers: Indices) -> Federation:
        """The federation as the clients train on it."""
        del attackers
        return federation

    def send(self, start: Model, updates: Updates, attackers: Indices, seed: int, round_number: int) -> Updates:
        """What arrives at the server in place of `updates`; clients received `start`."""
        del start, attackers, seed, round_number
        return updates

    def report(self, counts: ClassCounts, clients: Indices, workers: Indices, attackers: Indices) -> ClassCounts:
        """What workers report about the clients' models in place of `counts`."""
        del clients, workers, attackers
        return counts


attacks: Registry[Attack] = Registry("attack", Attack)
attacks.register("none")(Attack)


@attacks.register("label-flip")
@dataclass(frozen=True)
class LabelFlip(Attack):
    """Attackers train on false labels, m − 1 − y for y, and as workers judge others by them."""

    def poison(self, federation: Federation, attackers: Indices) -> Federation:
        """The attackers' samples with their classes in reverse order."""
        dataset = federation.dataset
        labels = dataset.train.labels.copy()
        for client in attackers.tolist():
            held = federation.indices(client)
            labels[held] = dataset.classes - 1 - labels[held]
        train = replace(dataset.train, labels=labels)
        return replace(federation, dataset=replace(dataset, train=train))


@dataclass(frozen=True)
class FalseUpdate(Attack):
    """Attackers send another update θ_k − Θ than the one they made."""

    def send(self, start: Model, updates: Updates, attackers: Indices, seed: int, round_number: int) -> Updates:
        """The attackers' models at another place; buffers are the trained ones."""
        false = _among(updates.clients, attackers)
        if not bool(false.any()):
            return updates
        own = tree_map(lambda theta, there: (theta - there)[false], updates.model.params, start.params)
        moved = self.instead(
            own, [generator(seed, "attack", round_number, client) for client in updates.clients[false].tolist()]
        )
        params = tree_map(torch.clone, updates.model.params)
        for name, tensor in params.items():
            tensor[false] = start.params[name] + moved[name]
        return replace(updates, model=Model(params, updates.model.buffers))

    def instead(self, client_updates: Tree, draws: Sequence[np.random.Generator]) -> Tree:
        """What the attackers send in place of their updates; each has a generator to draw from."""
        raise NotImplementedError


@attacks.register("sign-flip")
@dataclass(frozen=True)
class SignFlip(FalseUpdate):
    """Attackers send Θ − (θ_k − Θ): a step back from what they learned."""

    def instead(self, client_updates: Tree, draws: Sequence[np.random.Generator]) -> Tree:
        """The update reversed."""
        del draws
        return tree_map(torch.neg, client_updates)


@attacks.register("scale")
@dataclass(frozen=True)
class Scale(FalseUpdate):
    """Attackers send Θ + factor · (θ_k − Θ), to have the say of many."""

    factor: Annotated[float, Option("times that the update is enlarged", above=0)] = 10.0

    def instead(self, client_updates: Tree, draws: Sequence[np.random.Generator]) -> Tree:
        """The update enlarged."""
        del draws
        return tree_map(lambda tensor: self.factor * tensor, client_updates)


@attacks.register("noise")
@dataclass(frozen=True)
class Noise(FalseUpdate):
    """Attackers send Θ and Gaussian noise, some times as long as their own update."""

    factor: Annotated[float, Option("length of the noise in lengths of the update", above=0)] = 3.0

    def instead(self, client_updates: Tree, draws: Sequence[np.random.Generator]) -> Tree:
        """Noise of the same spread in all coordinates; drawn on the CPU, so that every device has the same."""
        size = sum(tensor[0].numel() for tensor in client_updates.values())
        lengths = torch.stack([tensor.reshape(len(tensor), -1).square().sum(1) for tensor in client_updates.values()])
        spread = self.factor * (lengths.sum(0) / size).sqrt()
        drawn = [draw.standard_normal(size) for draw in draws]
        rows = torch.from_numpy(np.stack(drawn)).to(spread)
        parts = torch.split(rows * spread[:, None], [tensor[0].numel() for tensor in client_updates.values()], dim=1)
        return {
            name: part.reshape(client_updates[name].shape) for name, part in zip(client_updates, parts, strict=True)
        }


@attacks.register("free-rider")
@dataclass(frozen=True)
class FreeRider(FalseUpdate):
    """Attackers send back the model that they received."""

    def instead(self, client_updates: Tree, draws: Sequence[np.random.Generator]) -> Tree:
        """No update."""
        del draws
        return tree_map(torch.zeros_like, client_updates)


@attacks.register("lying-worker")
@dataclass(frozen=True)
class LyingWorker(SignFlip):
    """Attackers step back as in sign-flip; as workers they call each other's models perfect and all others wrong.

    The lie is one that no check of a single report can find: of a model to be pushed all labels are predicted rightly,
    of one to be buried every label is taken for the next class; labels are the same in all of a worker's reports.
    """

    sends: Annotated[Literal["sign-flip", "honest"], Option("the models that attackers send")] = "sign-flip"
    inflate: Annotated[int, Option("times that a liar multiplies its samples, to count for more", at_least=1)] = 10

    def send(self, start: Model, updates: Updates, attackers: Indices, seed: int, round_number: int) -> Updates:
        """Reversed updates, or honest ones."""
        return updates if self.sends == "honest" else super().send(start, updates, attackers, seed, round_number)

    def report(self, counts: ClassCounts, clients: Indices, workers: Indices, attackers: Indices) -> ClassCounts:
        """Z = TP = T about an attacker's model; Z = T moved on by one class and TP = 0 about another's."""
        device = counts.labels.device
        lying = torch.from_numpy(np.isin(workers, attackers)).to(device)[..., None]
        pushed = torch.from_numpy(np.isin(clients, attackers)).to(device)[:, None, None]
        labels = self.inflate * counts.labels
        predicted = torch.where(pushed, labels, labels.roll(1, dims=-1))
        correct = torch.where(pushed, labels, 0)
        return ClassCounts(
            torch.where(lying, predicted, counts.predicted),
            torch.where(lying, correct, counts.correct),
            torch.where(lying, labels, counts.labels),
        )


def _among(clients: Tensor, attackers: Indices) -> Tensor:
    return torch.from_numpy(np.isin(clients.cpu().numpy(), attackers))
