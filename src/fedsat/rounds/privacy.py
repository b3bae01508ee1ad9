"""Differential privacy: what clients send is clipped, and noise hides what one client contributes.

Two federations are neighbours if they differ in the samples of one client, but not in their number: sample counts,
and everything that follows from them and the settings, are public. `Local` protects clients against the server, which
sees only noised uploads. `Central` trusts the server and protects clients against everyone who sees global models.
`fedsat.rounds.ledger` adds up what is spent.

A client sends Θ' + u', where Θ' is where its model would be without its own samples (`Algorithm.start_of_update`,
usually Θ), and u' is θ_k − Θ' scaled down to norm C, plus noise in the local case. Replacing its samples changes the
clipped update by at most 2C. Everything else that it sends must follow from the noised model. What it keeps is exact.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar

import numpy as np
import torch
from torch import Tensor

from fedsat.algorithms import Aggregator, Algorithm, LocalResult, Model, Task, Updates
from fedsat.algorithms.base import client_updates
from fedsat.algorithms.footprint import rehearse
from fedsat.algorithms.weighting import STATEMENT
from fedsat.errors import UsageError
from fedsat.metrics import ClassCounts
from fedsat.options import Option, check
from fedsat.registry import Registry
from fedsat.rounds.noise import Source, Sources, seeded
from fedsat.rounds.secure import enough, secure_mean
from fedsat.seeding import Indices, generator
from fedsat.tree import State, Tree, norms, per_client, tree_map, weighted_sum


@dataclass(frozen=True)
class Privacy:
    """No differential privacy."""

    active: ClassVar[bool] = False
    """Whether clients hide their losses and clip their updates."""
    noisy_reports: ClassVar[bool] = False
    """Whether workers' reports may contradict themselves because of noise."""
    fixed_weights: ClassVar[bool] = False
    """Whether no client may be left out because of what the others sent, which would change their weights."""

    def __post_init__(self) -> None:
        check(self, "privacy")

    def refuse(self, algorithm: Algorithm) -> str | None:
        """Return why a method cannot be made private in this way, or None."""
        del algorithm
        return None

    @property
    def longest(self) -> float:
        """The largest norm of an update θ_k − Θ' that a client sends."""
        return math.inf

    @property
    def largest_count(self) -> float:
        """The largest number in an honest report with noise."""
        return math.inf

    def send(self, known: Tree, params: Tree, sources: Sequence[Source]) -> Tree:
        """Return the models that clients send instead of `params`; `known` is Θ', stacked or not."""
        del known, sources
        return params

    def release(self, start: Model, updates: Updates, weights: Tensor, source: Source) -> Updates:
        """Return the updates that the method's aggregation may use."""
        del start, weights, source
        return updates

    def judged(self, held: Indices, seed: int, node: int) -> Indices:
        """Return the samples on which a worker evaluates models."""
        del seed, node
        return held

    def report(
        self, counts: ClassCounts, clients: Indices, workers: Indices, number: int, sources: Sources
    ) -> ClassCounts:
        """Return what workers report instead of `counts`."""
        del clients, workers, number, sources
        return counts

    def combined(self, counts: ClassCounts) -> ClassCounts:
        """Return the reports as the weighting may use them."""
        return counts


privacies: Registry[Privacy] = Registry("privacy", Privacy, "privacy")
privacies.register("none")(Privacy)

Clip = Annotated[float, Option("C, longest update that a client sends; longer ones are scaled down", above=0)]
Noise = Annotated[
    float, Option("standard deviation of the noise on updates, relative to what one client can change", above=0)
]


@dataclass(frozen=True)
class Clipped(Privacy):
    """Base class of privacy by clipped updates."""

    active: ClassVar[bool] = True

    dp_clip: Clip = 1.0
    dp_noise: Noise = 1.0

    @property
    def sensitivity(self) -> float:
        """2C: how far an update can move if its client's samples are replaced."""
        return 2 * self.dp_clip

    def refuse(self, algorithm: Algorithm) -> str | None:
        """Refuse uploads that do not follow from the update."""
        _, uploads = rehearse(algorithm, Model({"w": torch.ones(1)}, {}))
        if STATEMENT in uploads:
            return "its weighting uses a number that clients compute from their exact class counts"
        exact = sorted(name for name, tree in uploads.items() if tree and name not in algorithm.follows_from_model)
        if exact:
            return f"clients also upload {', '.join(exact)}, which clipping the update does not bound"
        return None

    def send(self, known: Tree, params: Tree, sources: Sequence[Source]) -> Tree:
        """Return Θ' + u'."""
        del sources
        return tree_map(torch.add, known, self.clipped(known, params))

    def clipped(self, known: Tree, params: Tree) -> Tree:
        """Return (θ_k − Θ') · min(1, C/‖θ_k − Θ'‖). An update that is not finite becomes 0."""
        moved = tree_map(torch.sub, params, known)
        lengths = norms(moved)
        whole = torch.isfinite(lengths)
        share = torch.where(whole, (self.dp_clip / lengths).clamp(max=1), 0.0)
        return tree_map(lambda u: per_client(share, u) * torch.where(per_client(whole, u).bool(), u, 0.0), moved)


@privacies.register("local")
@dataclass(frozen=True)
class Local(Clipped):
    """Clients add noise before they send anything: to updates, and as workers to their counts."""

    noisy_reports: ClassVar[bool] = True

    dp_counts: Annotated[
        float,
        Option(
            "standard deviation of the noise on a worker's counts, relative to what its samples can change", above=0
        ),
    ] = 10.0
    dp_samples: Annotated[int, Option("largest number of samples on which a worker evaluates models", at_least=1)] = 100

    def refuse(self, algorithm: Algorithm) -> str | None:
        """Refuse weightings that look at single reports, which are mostly noise."""
        if algorithm.weighting.needs_each_report:
            return "its weighting compares the reports of single workers, which are mostly noise"
        return super().refuse(algorithm)

    def send(self, known: Tree, params: Tree, sources: Sequence[Source]) -> Tree:
        """Return Θ' + u' plus Gaussian noise with standard deviation `dp_noise` · 2C."""
        noised = with_noise(self.clipped(known, params), self.dp_noise, self.sensitivity, sources)
        return tree_map(torch.add, known, noised)

    def release(self, start: Model, updates: Updates, weights: Tensor, source: Source) -> Updates:
        """Return the updates, which are already noised, with the noise of their mean."""
        del start, source
        return replace(updates, noise=self.dp_noise * self.sensitivity * float(weights.double().norm()))

    def judged(self, held: Indices, seed: int, node: int) -> Indices:
        """Return at most `dp_samples` samples, the same ones in every round."""
        if len(held) <= self.dp_samples:
            return held
        return np.sort(generator(seed, "private samples", node).choice(held, self.dp_samples, replace=False))

    @property
    def count_sensitivity(self) -> float:
        """2M: how far (Z, TP) can move in Euclidean distance if a worker's M samples are replaced.

        Z and TP are non-negative integers with sums of at most M, so each moves by at most √2 M.
        """
        return 2.0 * self.dp_samples

    @property
    def largest_count(self) -> float:
        """M plus eight standard deviations, which the noise exceeds with probability 10⁻¹⁵."""
        return self.dp_samples + 8 * self.dp_counts * self.count_sensitivity

    @property
    def label_sensitivity(self) -> float:
        """√2 M: how far the label histogram T can move if a worker's M samples are replaced."""
        return float(np.sqrt(2) * self.dp_samples)

    def noised(self, predicted: Tensor, correct: Tensor, source: Source) -> tuple[Tensor, Tensor]:
        """Return a worker's (Z, TP) of one model, [m] each, plus discrete Gaussian noise."""
        drawn = source.discrete(self.dp_counts * self.count_sensitivity, 2 * len(predicted))
        first, second = torch.from_numpy(drawn).to(predicted.device).chunk(2)
        return predicted + first, correct + second

    def noised_labels(self, labels: Tensor, source: Source) -> Tensor:
        """Return a worker's label histogram T, [m], plus discrete Gaussian noise."""
        drawn = source.discrete(self.dp_counts * self.label_sensitivity, len(labels))
        return labels + torch.from_numpy(drawn).to(labels.device)

    def report(
        self, counts: ClassCounts, clients: Indices, workers: Indices, number: int, sources: Sources
    ) -> ClassCounts:
        """Add noise to every report. The noise on a worker's T is the same in all rounds: T is released only once."""
        predicted, correct, labels = (vector.clone() for vector in (counts.predicted, counts.correct, counts.labels))
        for row, client in enumerate(clients.tolist()):
            for column, worker in enumerate(workers[row].tolist()):
                place = row, column
                source = sources("private counts", number, client, worker)
                predicted[place], correct[place] = self.noised(predicted[place], correct[place], source)
                labels[place] = self.noised_labels(labels[place], sources("private labels", worker))
        return ClassCounts(predicted, correct, labels, counts.workers)

    def combined(self, counts: ClassCounts) -> ClassCounts:
        """Return the sum over the workers as one report, moved to the nearest counts that are possible."""
        predicted, labels = (vector.sum(1, keepdim=True).clamp(min=0) for vector in (counts.predicted, counts.labels))
        correct = torch.minimum(counts.correct.sum(1, keepdim=True).clamp(min=0), torch.minimum(predicted, labels))
        return ClassCounts(predicted, correct, labels)


@privacies.register("central")
@dataclass(frozen=True)
class Central(Clipped):
    """Clients clip their updates, and the server adds noise to their weighted mean."""

    fixed_weights: ClassVar[bool] = True

    @property
    def longest(self) -> float:
        """C."""
        return self.dp_clip

    def refuse(self, algorithm: Algorithm) -> str | None:
        """Refuse methods that use more of the clients' data than one mean with public weights."""
        if not algorithm.weighting.public:
            return (
                "its weights depend on the clients' data, so one client changes the share of all others; "
                "use --without pwa, --with uniform or --privacy local"
            )
        if type(algorithm.aggregator) is not Aggregator:
            return "its aggregator is not the mean, so the noise would not cover what one client can change"
        if not algorithm.uses_mean_only:
            return "its server uses more of the updates than their mean; use --privacy local"
        return super().refuse(algorithm)

    def release(self, start: Model, updates: Updates, weights: Tensor, source: Source) -> Updates:
        """Replace every update by the noised mean, so that nothing else can be used.

        The mean moves by at most 2C · max w_k if one client's samples are replaced, because weights are public.
        """
        mean = weighted_sum(client_updates(start, updates), weights)
        stacked, moves = tree_map(lambda tensor: tensor.unsqueeze(0), mean), self.sensitivity * float(weights.max())
        noised = with_noise(stacked, self.dp_noise, moves, [source])
        params = tree_map(lambda theta, u: (theta + u).expand(len(weights), *theta.shape), start.params, noised)
        return replace(updates, model=Model(params, updates.model.buffers), noise=self.dp_noise * moves)


def with_noise(tree: Tree, noise: float, sensitivity: float, sources: Sequence[Source]) -> Tree:
    """Add Gaussian noise to each client's part of a stacked tree, drawn on the CPU so that devices agree."""
    noised = {name: tensor.clone() for name, tensor in tree.items()}
    sizes = [tensor[0].numel() for tensor in tree.values()]
    for place, source in enumerate(sources):
        values = torch.cat([tensor[place].flatten().double().cpu() for tensor in tree.values()]).numpy()
        drawn = torch.from_numpy(source.noised(values, noise, sensitivity))
        for tensor, part in zip(noised.values(), torch.split(drawn, sizes), strict=True):
            tensor[place] = part.to(tensor).reshape(tensor[place].shape)
    return noised


@dataclass(frozen=True)
class Protection:
    """The privacy of a run, and where its noise comes from."""

    privacy: Privacy = Privacy()
    sources: Sources = field(default_factory=lambda: seeded(0))
    on_nodes: bool = False
    """Whether clients are real nodes, which add their noise and their masks themselves."""
    secure: bool = False
    """Whether the server sees only the sum of the updates (secure aggregation)."""

    @property
    def hides_losses(self) -> bool:
        """Whether clients do not send their training losses."""
        return self.secure or self.privacy.active

    @property
    def checks_updates(self) -> bool:
        """Whether the server may refuse single updates because of their length."""
        return not (self.secure or self.privacy.fixed_weights)

    def can_aggregate(self, sampled: int, responded: int) -> bool:
        """Whether enough of the sampled clients responded."""
        return enough(sampled, responded) if self.secure else responded > 0

    def report(self, counts: ClassCounts, clients: Indices, workers: Indices, number: int) -> ClassCounts:
        """Return what workers report instead of `counts`."""
        if self.on_nodes:
            return counts
        return self.privacy.report(counts, clients, workers, number, self.sources)

    def release(self, start: Model, updates: Updates, weights: Tensor, scales: Tensor, number: int) -> Updates:
        """Return the updates that the method's aggregation may use; clients multiply them by `scales` before a sum."""
        if self.secure and not self.on_nodes:
            updates = secure_mean(start, updates, scales)
        return self.privacy.release(start, updates, weights, self.sources("private mean", number))

    def finish(
        self, algorithm: Algorithm, task: Task, carry: State, result: LocalResult, clients: Sequence[int], number: int
    ) -> tuple[Tree, State, State]:
        """Finish the local training: return the models that clients send, their new states, and their other uploads.

        Uploads are computed again from what is sent. States stay with the clients, so they keep the exact results.
        """
        state, uploads = algorithm.end(task, carry, result)
        if not self.privacy.active:
            return result.params, state, uploads
        known = algorithm.start_of_update(task, result.steps)
        sources = [self.sources("private update", number, client) for client in clients]
        params = self.privacy.send(known, result.params, sources)
        if uploads:
            uploads = algorithm.end(task, carry, replace(result, params=params))[1]
        return params, state, uploads


def refuse_privacy(privacy: Privacy, algorithm: Algorithm, method: str) -> None:
    """Raise an error if a method cannot be made private in the way that is asked for."""
    why = privacy.refuse(algorithm)
    if why is not None:
        raise UsageError(f"privacy is {privacies.name_of(privacy)!r}, but {method} cannot be private: {why}")


def refuse_buffers(privacy: Privacy, model: Model) -> None:
    """Raise an error if clients would upload exact statistics of their samples, such as BatchNorm's."""
    exact = [name for name, tensor in model.buffers.items() if tensor.is_floating_point()]
    if privacy.active and exact:
        raise UsageError(
            f"privacy is {privacies.name_of(privacy)!r}, but the model has running statistics ({exact[0]}), which "
            "clipping the update does not bound; use a model with another norm, such as --set norm=group"
        )
