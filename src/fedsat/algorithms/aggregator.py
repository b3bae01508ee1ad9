"""Aggregators: the weighted mean of the clients' updates, or a robust replacement for it.

Every method accepts every aggregator. An aggregator first chooses whose updates count (`select`, used by multi-Krum),
then computes the centre of the clients' trees (`centre`, used by the median and the trimmed mean). Whatever a method
averages besides the model (SCAFFOLD's controls, FedDyn's duals, …) uses the same functions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from fedsat.algorithms.reports import ratio, weighted_median
from fedsat.options import Option, check
from fedsat.registry import Registry
from fedsat.tree import Tree, norms, per_client, tree_map, weighted_sum


@dataclass(frozen=True)
class Aggregator:
    """The weighted mean, Σ_k w_k · tree_k."""

    selects: ClassVar[bool] = False
    """Whether the weights depend on the updates, so that `select` must be called."""

    def __post_init__(self) -> None:
        check(self, "aggregator")

    def select(self, client_updates: Tree, weights: Tensor) -> Tensor:
        """Return the final weights, with sum 1, given the updates θ_k − Θ and the initial weights."""
        del client_updates
        return weights

    def centre(self, tree: Tree, weights: Tensor) -> Tree:
        """Return the centre of the clients' trees."""
        return weighted_sum(tree, weights)

    def total(self, tree: Tree, weights: Tensor) -> Tree:
        """Return Σ_k tree_k over the round's clients, for sums that do not depend on the weights."""
        del weights
        return tree_map(lambda tensor: tensor.sum(0), tree)


aggregators: Registry[Aggregator] = Registry("aggregator", Aggregator, "aggregators")
aggregators.register("mean")(Aggregator)


Hostile = Annotated[float, Option("share of a round's clients that may be malicious", at_least=0, below=0.5)]


@dataclass(frozen=True)
class Robust(Aggregator):
    """Base of aggregators that treat all clients with a non-zero weight alike."""

    def total(self, tree: Tree, weights: Tensor) -> Tree:
        """Return the centre times the number of clients, a robust estimate of the sum."""
        counted = (weights > 0).to(weights)
        return tree_map(lambda tensor: len(weights) * tensor, self.centre(tree, counted / counted.sum()))


@aggregators.register("median")
@dataclass(frozen=True)
class CoordinateMedian(Robust):
    """The median of each coordinate (Yin et al. 2018), robust against any minority of malicious clients."""

    def centre(self, tree: Tree, weights: Tensor) -> Tree:
        """Return the middle value of each coordinate, or the mean of the two middle ones."""
        counted = weights > 0
        return tree_map(lambda tensor: _middle(tensor[counted], (int(counted.sum()) - 1) // 2), tree)


@aggregators.register("trimmed-mean")
@dataclass(frozen=True)
class TrimmedMean(Robust):
    """The mean of each coordinate without its largest and smallest values (Yin et al. 2018)."""

    hostile: Hostile = 0.3

    def centre(self, tree: Tree, weights: Tensor) -> Tree:
        """Return the mean of each coordinate, leaving out one value at each end per suspected client."""
        counted = weights > 0
        suspects = suspected(self.hostile, int(counted.sum()))
        return tree_map(lambda tensor: _middle(tensor[counted], suspects), tree)


@aggregators.register("damped-mean")
@dataclass(frozen=True)
class DampedMean(Aggregator):
    """The weighted mean with lower weights for updates far longer or shorter than the median.

    Norm clipping (Sun et al. 2019) shortens a long update to the limit, where it still contributes as much as any
    other. Here, the longer an update, the less it contributes. Very short updates lose weight too, because they would
    take it from clients that trained.
    """

    selects: ClassVar[bool] = True

    longest: Annotated[float, Option("damp updates longer than this many times the round's median", above=0)] = 1.5
    shortest: Annotated[float, Option("damp updates shorter than this many medians; 0: never", at_least=0)] = 0.2

    def select(self, client_updates: Tree, weights: Tensor) -> Tensor:
        """Return w_k · min(1, (longest/r_k)², (r_k/shortest)²), normalised.

        r_k is ‖θ_k − Θ‖ divided by the usual length (`usual_length`).
        """
        lengths = norms(client_updates)
        if not bool((lengths > 0).any()):
            return weights
        relative = lengths / usual_length(lengths, weights)
        factor = torch.where(relative > self.longest, (self.longest / relative.clamp(min=1e-300)).square(), 1.0)
        if self.shortest:
            factor = torch.where(relative < self.shortest, (relative / self.shortest).square(), factor)
        return normalised(weights * factor.to(weights), weights)

    def total(self, tree: Tree, weights: Tensor) -> Tree:
        """Return the centre times the number of clients."""
        return tree_map(lambda tensor: len(weights) * tensor, self.centre(tree, weights))


@aggregators.register("guarded-mean")
@dataclass(frozen=True)
class GuardedMean(DampedMean):
    """The damped mean with lower weights for repeated updates and for updates against the others.

    Each rule stops what the others cannot see: `longest` and `shortest` an unusual length, `part` an unusual tensor or
    row, such as that of one class, `repeats` several attackers that send the same usual update, and `against` updates
    that undo the work of the others.
    """

    part: Annotated[
        float, Option("damp updates with a tensor, or longest row, this many medians away from the median", above=0)
    ] = 2.0

    repeats: Annotated[
        float,
        Option("updates closer to each other than this many median distances share one weight", at_least=0, below=1),
    ] = 0.2
    against: Annotated[
        float,
        Option("damp updates whose cosine with the median is below this share of the usual cosine", at_least=0),
    ] = 0.5

    def select(self, client_updates: Tree, weights: Tensor) -> Tensor:
        """Return the damped weights, shared among repeated updates, times min(1, max(0, cos_k)/(against · usual)).

        cos_k is the cosine of a client's update and the median of every coordinate; the usual one is the median cosine.
        """
        damped = super().select(client_updates, weights)
        damped = damped * self.evenness(client_updates).to(damped)
        shared = normalised(damped / self.crowd(client_updates).to(damped), weights)
        cosines = cosines_with_median(client_updates, shared)
        usual = self.against * cosines[shared > 0].quantile(0.5)
        agreeing = shared * (cosines / usual).clamp(0, 1).to(shared)
        # Without a usual direction, as with two opposite updates, there is nothing to compare with.
        return agreeing / agreeing.sum() if bool(usual > 0) else shared

    def evenness(self, client_updates: Tree) -> Tensor:
        """Return min(1, (part/r_k)⁴), [K]; r_k is the largest length of a part of u_k − median(u), in its median.

        Parts are the tensors, and the longest row of each matrix: clients' longest rows are of different classes, but
        of similar lengths. What all clients share, such as FedSat's γ v_t, is in the median of every coordinate. It may
        contain what attackers achieved before, and would make more of it look usual.
        """
        apart = tree_map(lambda tensor: tensor - _middle(tensor, (len(tensor) - 1) // 2), client_updates)
        parts = [norms({name: tensor}) for name, tensor in apart.items()]
        parts += [longest_row(tensor) for tensor in apart.values() if tensor.dim() > 2]
        lengths = torch.stack(parts, dim=1)
        usual = lengths.quantile(0.5, dim=0)
        relative = ratio(lengths, usual.expand_as(lengths)).amax(1)
        return (self.part / relative.clamp(min=self.part)) ** 4

    def crowd(self, client_updates: Tree) -> Tensor:
        """Return how many updates, itself included, are as good as equal to each client's update, [K]."""
        squares = squared_distances(client_updates)
        pairs = squares[~torch.eye(len(squares), dtype=torch.bool, device=squares.device)]
        near = squares < (self.repeats**2 * _middle(pairs, (len(pairs) - 1) // 2) if len(pairs) else 0)
        return near.fill_diagonal_(True).sum(1)


@aggregators.register("multi-krum")
@dataclass(frozen=True)
class MultiKrum(Robust):
    """The mean of the clients whose updates have the nearest neighbours (Blanchard et al. 2017)."""

    selects: ClassVar[bool] = True

    hostile: Hostile = 0.3

    def select(self, client_updates: Tree, weights: Tensor) -> Tensor:
        """Return the weights of the K − f clients with the lowest scores, where f clients may be malicious.

        The score of a client is the sum of the squared distances to its K − f − 2 nearest neighbours.
        """
        places = torch.nonzero(weights > 0).flatten()
        clients = len(places)
        suspects = suspected(self.hostile, clients)
        squares = squared_distances(tree_map(lambda tensor: tensor[places], client_updates))
        # The smallest value of each row is the client's distance to itself, 0.
        scores = squares.sort(dim=1).values[:, 1 : 1 + max(1, clients - suspects - 2)].sum(1)
        chosen = places[scores.argsort(stable=True)[: clients - suspects]]
        kept = torch.zeros_like(weights)
        kept[chosen] = weights[chosen]
        return kept / kept.sum()


def usual_length(lengths: Tensor, weights: Tensor) -> Tensor:
    """Return the median of the lengths that are not zero, or their weighted median if it is smaller; 0 if all are zero.

    Attackers can make the usual length too large only if they are most clients of the round, and also have most of the
    weight, which a filter may have taken from them. Too small a length slows down a round, and does no harm.
    """
    moved = lengths > 0
    if not bool(moved.any()):
        return torch.zeros_like(lengths.sum())
    middle, counted = lengths[moved].quantile(0.5), weights.to(lengths) * moved
    return torch.minimum(middle, weighted_median(lengths, counted, dim=0)) if bool((counted > 0).any()) else middle


def normalised(damped: Tensor, weights: Tensor) -> Tensor:
    """Return the damped weights with sum 1; the weights of before if nothing is left of them."""
    total = damped.sum()
    return damped / total if bool(total > 0) else weights


def suspected(share: float, clients: int) -> int:
    """Return the assumed number of malicious clients: the share rounded up, but less than half."""
    return min(math.ceil(share * clients - 1e-9), (clients - 1) // 2)


def longest_row(tensor: Tensor) -> Tensor:
    """Return the length of the longest row of each client's matrix, [K], in float64; rows belong to output units."""
    lengths: Tensor = torch.linalg.vector_norm(tensor.flatten(2), dim=2, dtype=torch.float64)
    return lengths.amax(1)


def squared_distances(tree: Tree) -> Tensor:
    """Return the squared distance of every two clients' trees, [K, K], in float64."""
    total = torch.zeros((), dtype=torch.float64)
    for tensor in tree.values():
        rows = tensor.flatten(1).double()
        # Differences, because ‖a‖² − 2ab + ‖b‖² would lose small distances between long updates.
        total = total.to(rows.device) + torch.stack([(rows - row).square().sum(1) for row in rows])
    return total


def cosines_with_median(client_updates: Tree, weights: Tensor) -> Tensor:
    """Return the cosine of each client's update and the weighted median of every coordinate, [K]; 0 for zero."""
    middle = tree_map(
        lambda tensor: weighted_median(tensor, per_client(weights, tensor).expand_as(tensor), dim=0)[None],
        client_updates,
    )
    products = [(tensor.double() * middle[name].double()).flatten(1).sum(1) for name, tensor in client_updates.items()]
    lengths = norms(client_updates) * norms(middle)
    return torch.where(lengths > 0, torch.stack(products).sum(0) / lengths.clamp(min=1e-300), 0.0)


def _middle(tensor: Tensor, left_out: int) -> Tensor:
    """Return the mean over the first axis without the `left_out` largest and smallest values of each coordinate."""
    ordered = tensor.sort(dim=0).values
    return ordered[left_out : len(ordered) - left_out].mean(0)
