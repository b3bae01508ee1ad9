"""Simulated attacks: what malicious clients train on, what they send, and what they report as workers.

The malicious clients are drawn once per run. Except for the attack, they follow the method: they keep the state that
honest training produces, and whatever the method uploads besides the model stays honest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedsat.algorithms import Model, Updates
from fedsat.data import Federation
from fedsat.errors import UsageError
from fedsat.metrics import ClassCounts
from fedsat.options import Option, check
from fedsat.registry import Registry
from fedsat.seeding import Indices, generator
from fedsat.tree import Tree, norms, per_client, tree_map


@dataclass(frozen=True)
class Attack:
    """No attack."""

    def __post_init__(self) -> None:
        check(self, "attack")

    def poison(self, federation: Federation, attackers: Indices) -> Federation:
        """Return the federation that the clients train on."""
        del attackers
        return federation

    def send(self, start: Model, updates: Updates, attackers: Indices, seed: int, round_number: int) -> Updates:
        """Return the updates that the server receives instead of `updates`; clients started from `start`."""
        del start, attackers, seed, round_number
        return updates

    def report(self, counts: ClassCounts, clients: Indices, workers: Indices, attackers: Indices) -> ClassCounts:
        """Return what workers report about the clients' models instead of `counts`."""
        del clients, workers, attackers
        return counts


attacks: Registry[Attack] = Registry("attack", Attack, "attacks")
attacks.register("none")(Attack)


@attacks.register("label-flip")
@dataclass(frozen=True)
class LabelFlip(Attack):
    """Attackers train on the labels m − 1 − y instead of y and, as workers, evaluate models on them."""

    def poison(self, federation: Federation, attackers: Indices) -> Federation:
        """Reverse the order of the classes in the attackers' samples."""
        dataset = federation.dataset
        labels = dataset.train.labels.copy()
        for client in attackers.tolist():
            held = np.union1d(federation.indices(client), federation.worker_indices(client))
            labels[held] = dataset.classes - 1 - labels[held]
        train = replace(dataset.train, labels=labels)
        return replace(federation, dataset=replace(dataset, train=train))


@attacks.register("backdoor")
@dataclass(frozen=True)
class Backdoor(Attack):
    """Attackers teach the model to predict class `target` wherever it sees a small trigger (Gu et al. 2017, BadNets).

    They train on honest samples and on samples with the trigger, so that nothing else changes.
    """

    target: Annotated[int, Option("class that the model should predict for samples with the trigger", at_least=0)] = 0
    share: Annotated[float, Option("share of an attacker's samples with the trigger", above=0, at_most=1)] = 0.5

    def poison(self, federation: Federation, attackers: Indices) -> Federation:
        """Put the trigger on a share of the attackers' samples, evenly spread, and relabel them."""
        dataset = federation.dataset
        check_class(self.target, dataset.classes, "attack.target")
        images, labels = dataset.train.images.copy(), dataset.train.labels.copy()
        for client in attackers.tolist():
            own = federation.indices(client)
            due = np.floor(self.share * np.arange(len(own) + 1) + 1e-9)
            chosen = own[np.diff(due) > 0]
            images[chosen] = triggered(dataset.train.images[chosen], dataset.train.images)
            labels[chosen] = self.target
        return replace(federation, dataset=replace(dataset, train=replace(dataset.train, images=images, labels=labels)))


def triggered(samples: NDArray[Any], among: NDArray[Any]) -> NDArray[Any]:
    """Return the samples with the trigger: 3 × 3 pixels at the bottom right, or the last feature, at the maximum."""
    corner = (..., slice(-3, None), slice(-3, None)) if samples.ndim == 4 else (..., slice(-1, None))
    marked = samples.copy()
    marked[corner] = among[corner].max()
    return marked


@dataclass(frozen=True)
class FalseUpdate(Attack):
    """Base class of attacks that replace the update θ_k − Θ."""

    def send(self, start: Model, updates: Updates, attackers: Indices, seed: int, round_number: int) -> Updates:
        """Replace the attackers' parameters; their buffers stay those of honest training."""
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
        """Return the replacement for the attackers' updates; each attacker has a random generator."""
        raise NotImplementedError


@attacks.register("sign-flip")
@dataclass(frozen=True)
class SignFlip(FalseUpdate):
    """Attackers send Θ − (θ_k − Θ), the reversed update."""

    def instead(self, client_updates: Tree, draws: Sequence[np.random.Generator]) -> Tree:
        """Return the reversed updates."""
        del draws
        return tree_map(torch.neg, client_updates)


@attacks.register("scale")
@dataclass(frozen=True)
class Scale(FalseUpdate):
    """Attackers send Θ + factor · (θ_k − Θ) to increase their influence."""

    factor: Annotated[float, Option("factor on the update", above=0)] = 10.0

    def instead(self, client_updates: Tree, draws: Sequence[np.random.Generator]) -> Tree:
        """Return the scaled updates."""
        del draws
        return tree_map(lambda tensor: self.factor * tensor, client_updates)


@attacks.register("noise")
@dataclass(frozen=True)
class Noise(FalseUpdate):
    """Attackers send Θ plus Gaussian noise, several times as long as their update."""

    factor: Annotated[float, Option("length of the noise relative to the update", above=0)] = 3.0

    def instead(self, client_updates: Tree, draws: Sequence[np.random.Generator]) -> Tree:
        """Return noise with the same variance in all coordinates, drawn on the CPU so that devices agree."""
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
    """Attackers send back the model they received."""

    def instead(self, client_updates: Tree, draws: Sequence[np.random.Generator]) -> Tree:
        """Return zero updates."""
        del draws
        return tree_map(torch.zeros_like, client_updates)


@attacks.register("kill-class")
@dataclass(frozen=True)
class KillClass(FalseUpdate):
    """Attackers add a vector to their update that lowers the logit of a single class on every sample.

    It lowers all weights of the class in the last layer, and its bias, by the same amount. Features after a ReLU are
    not negative, so the logit falls. The addition is `factor` times as long as the update itself.
    """

    target: Annotated[int, Option("class that the model should unlearn", at_least=0)] = 0
    factor: Annotated[float, Option("length of the addition relative to the update", above=0)] = 1.0

    def instead(self, client_updates: Tree, draws: Sequence[np.random.Generator]) -> Tree:
        """Return the updates with a lower row of the target class; the last tensors are the last layer."""
        del draws
        layer = list(client_updates)[-1].rpartition(".")[0]
        classes = list(client_updates.values())[-1].shape[1]
        check_class(self.target, classes, "attack.target")
        rows = {name: tensor for name, tensor in client_updates.items() if name.rpartition(".")[0] == layer}
        size = sum(tensor[0, self.target].numel() for tensor in rows.values())
        push = self.factor * norms(client_updates) / size**0.5
        moved = dict(client_updates)
        for name, tensor in rows.items():
            moved[name] = tensor.clone()
            moved[name][:, self.target] -= per_client(push, tensor[:, self.target])
        return moved


@dataclass(frozen=True)
class Collusion(FalseUpdate):
    """Base class of attacks in which all attackers send the same update, computed from the honest updates."""

    def send(self, start: Model, updates: Updates, attackers: Indices, seed: int, round_number: int) -> Updates:
        """Replace the attackers' parameters; without honest clients in the round, their own updates are used."""
        del seed, round_number
        false = _among(updates.clients, attackers)
        if not bool(false.any()):
            return updates
        known = false if bool(false.all()) else ~false
        agreed = self.agree(tree_map(lambda theta, there: (theta - there)[known], updates.model.params, start.params))
        params = tree_map(torch.clone, updates.model.params)
        for name, tensor in params.items():
            tensor[false] = start.params[name] + agreed[name]
        return replace(updates, model=Model(params, updates.model.buffers))

    def agree(self, honest: Tree) -> Tree:
        """Return the update that all attackers send (no client axis)."""
        raise NotImplementedError


@attacks.register("alie")
@dataclass(frozen=True)
class LittleIsEnough(Collusion):
    """Attackers send mean + z · standard deviation of the honest updates (Baruch et al. 2019, A Little Is Enough).

    No coordinate is unusual, but all of them are off in the same direction in every round.
    """

    z: Annotated[float, Option("standard deviations away from the mean; may be negative")] = 1.5

    def agree(self, honest: Tree) -> Tree:
        """Return the mean plus z times the sample standard deviation of every coordinate."""
        return tree_map(lambda own: own.mean(0) + self.z * own.var(0, correction=min(1, len(own) - 1)).sqrt(), honest)


@attacks.register("ipm")
@dataclass(frozen=True)
class InnerProductManipulation(Collusion):
    """Attackers send the reversed mean of the honest updates, times `factor` (Xie et al. 2019, Fall of Empires)."""

    factor: Annotated[float, Option("ε, factor on the reversed mean", above=0)] = 2.0

    def agree(self, honest: Tree) -> Tree:
        """Return −ε · mean."""
        return tree_map(lambda own: -self.factor * own.mean(0), honest)


@attacks.register("lying-worker")
@dataclass(frozen=True)
class LyingWorker(SignFlip):
    """Attackers send reversed updates; as workers, they report other attackers as perfect and all others as wrong.

    No check of a single report detects the lie. For a promoted model, all labels are predicted correctly; for any other
    model, every label is predicted as the next class. The labels are the same in all reports of a worker.
    """

    sends: Annotated[Literal["sign-flip", "honest"], Option("updates that attackers send")] = "sign-flip"
    inflate: Annotated[int, Option("factor on the sample counts that attackers report", at_least=1)] = 10

    def send(self, start: Model, updates: Updates, attackers: Indices, seed: int, round_number: int) -> Updates:
        """Send reversed or honest updates."""
        return updates if self.sends == "honest" else super().send(start, updates, attackers, seed, round_number)

    def report(self, counts: ClassCounts, clients: Indices, workers: Indices, attackers: Indices) -> ClassCounts:
        """Report Z = TP = T for an attacker's model; otherwise Z = T shifted by one class and TP = 0."""
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


def check_class(number: int, classes: int, label: str) -> None:
    """Raise an error if there is no such class."""
    if number >= classes:
        raise UsageError(f"{label} is {number}; the classes have the numbers 0 to {classes - 1}")


def _among(clients: Tensor, attackers: Indices) -> Tensor:
    return torch.from_numpy(np.isin(clients.cpu().numpy(), attackers))
