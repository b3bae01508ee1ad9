"""How much each client of a round weighs in the aggregate. A weighting can be put on any method."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from fedsat.metrics import ClassCounts
from fedsat.options import Registry, check

if TYPE_CHECKING:
    from fedsat.algorithms.base import Updates


@dataclass(frozen=True)
class ClientWeights:
    """Weights of the round's clients, [K], non-negative with sum 1, and what they were judged by."""

    weights: Tensor
    class_scores: Tensor | None = None
    """How much each class struggles, [m], where the weighting asks."""
    client_scores: Tensor | None = None
    """How much each client's model struggles, [K]."""

    @property
    def effective_clients(self) -> float:
        """1/Σw²: how many equally weighted clients would average as much."""
        return float(1 / self.weights.square().sum()) if len(self.weights) else 0.0


@dataclass(frozen=True)
class Weighting:
    """Weights from what the server knows of the round's updates."""

    needs_counts: ClassVar[bool] = False
    """Whether worker nodes must evaluate the clients' models first."""

    def __post_init__(self) -> None:
        check(self, "weighting")

    @property
    def needs_each_report(self) -> bool:
        """Whether it looks at workers' reports one by one; else their sums would do."""
        return False

    def weigh(self, updates: Updates, counts: ClassCounts | None) -> ClientWeights:
        """The weights of the clients in `updates`; `counts` are the workers' reports, if asked for."""
        raise NotImplementedError


weightings: Registry[Weighting] = Registry("weighting", Weighting)


@weightings.register("samples")
@dataclass(frozen=True)
class BySamples(Weighting):
    """Every client by its number of samples, n_k/n_S."""

    def weigh(self, updates: Updates, counts: ClassCounts | None) -> ClientWeights:
        """n_k over the sum of the active clients' samples."""
        del counts
        sizes = updates.sizes.to(torch.float64)
        return ClientWeights(sizes / sizes.sum())


@weightings.register("uniform")
@dataclass(frozen=True)
class Uniform(Weighting):
    """Every client alike, 1/|S|."""

    def weigh(self, updates: Updates, counts: ClassCounts | None) -> ClientWeights:
        """1/|S| for each."""
        del counts
        sizes = updates.sizes.to(torch.float64)
        return ClientWeights(torch.full_like(sizes, 1 / len(sizes)))
