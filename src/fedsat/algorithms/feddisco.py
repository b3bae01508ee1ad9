"""FedDisco (Ye et al. 2023): clients whose classes are far from balanced get smaller weights.

    w_k ∝ max(0, n_k/n_S − a d_k + b)

d_k is the distance of the client's class shares from the uniform distribution. Clients compute the distance themselves
and send this number only, not their class counts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import torch
from torch import Tensor

from fedsat.algorithms.base import Algorithm, algorithms
from fedsat.algorithms.reports import ratio
from fedsat.algorithms.weighting import STATEMENT, BySamples, ClientWeights, Weighting, weightings
from fedsat.metrics import ClassCounts
from fedsat.options import Option
from fedsat.tree import Tree

if TYPE_CHECKING:
    from fedsat.algorithms.base import Updates


@weightings.register("disco")
@dataclass(frozen=True)
class DiscrepancyAware(Weighting):
    """Weights by the number of samples minus the distance of the client's classes from balance (FedDisco)."""

    a: Annotated[float, Option("a, weight of the distance", at_least=0)] = 0.5
    b: Annotated[float, Option("b, added to every weight before negative ones become 0", at_least=0)] = 0.1
    distance: Annotated[
        Literal["kl", "l2"],
        Option("KL divergence as a share of the round's sum (the authors' choice), or Euclidean distance"),
    ] = "kl"

    def statement(self, class_counts: Tensor) -> Tree:
        """Return the distance of each client's class shares from 1/m, [C]."""
        counts = class_counts.to(torch.float64)
        shares, classes = counts / counts.sum(1, keepdim=True), counts.shape[1]
        if self.distance == "kl":
            return {"distance": (torch.xlogy(shares, shares) + shares * math.log(classes)).sum(1)}
        return {"distance": (shares - 1 / classes).square().sum(1).sqrt()}

    def weigh(self, updates: Updates, counts: ClassCounts | None) -> ClientWeights:
        """Return the weights, or those by samples if none would be positive."""
        by_samples = BySamples().weigh(updates, counts).weights
        distance = updates.uploads[STATEMENT]["distance"].clamp(min=0)  # no client gains from a negative distance
        if self.distance == "kl":
            distance = ratio(distance, distance.sum())
        raw = (by_samples - self.a * distance + self.b).clamp(min=0)
        return ClientWeights(raw / raw.sum() if bool(raw.any()) else by_samples)


@algorithms.register("feddisco")
@dataclass(frozen=True)
class FedDisco(Algorithm):
    """FedAvg with smaller weights for clients whose classes are far from balanced (Ye et al. 2023)."""

    weighting: Annotated[Weighting, Option("weight of a client", among=weightings)] = DiscrepancyAware()
