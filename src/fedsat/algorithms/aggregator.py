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

from fedsat.options import Option, Registry, check
from fedsat.tree import Tree, norms, tree_map, weighted_sum


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

        r_k is ‖θ_k − Θ‖ divided by the median over the clients with a non-zero update.
        """
        lengths = norms(client_updates)
        moved = (weights > 0) & (lengths > 0)
        if not bool(moved.any()):
            return weights
        relative = lengths / lengths[moved].quantile(0.5)
        factor = torch.where(relative > self.longest, (self.longest / relative.clamp(min=1e-300)).square(), 1.0)
        if self.shortest:
            factor = torch.where(relative < self.shortest, (relative / self.shortest).square(), factor)
        damped = weights * factor.to(weights)
        return damped / damped.sum()

    def total(self, tree: Tree, weights: Tensor) -> Tree:
        """Return the centre times the number of clients."""
        return tree_map(lambda tensor: len(weights) * tensor, self.centre(tree, weights))


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
        squares = torch.zeros(clients, clients, dtype=torch.float64, device=weights.device)
        for tensor in client_updates.values():
            rows = tensor[places].reshape(clients, -1).double()
            # Differences, because ‖a‖² − 2ab + ‖b‖² would lose small distances between long updates.
            squares += torch.stack([(rows - row).square().sum(1) for row in rows])
        # The smallest value of each row is the client's distance to itself, 0.
        scores = squares.sort(dim=1).values[:, 1 : 1 + max(1, clients - suspects - 2)].sum(1)
        chosen = places[scores.argsort(stable=True)[: clients - suspects]]
        kept = torch.zeros_like(weights)
        kept[chosen] = weights[chosen]
        return kept / kept.sum()


def suspected(share: float, clients: int) -> int:
    """Return the assumed number of malicious clients: the share rounded up, but less than half."""
    return min(math.ceil(share * clients - 1e-9), (clients - 1) // 2)


def _middle(tensor: Tensor, left_out: int) -> Tensor:
    """Return the mean over the first axis without the `left_out` largest and smallest values of each coordinate."""
    ordered = tensor.sort(dim=0).values
    return ordered[left_out : len(ordered) - left_out].mean(0)
