"""Weightings: the weight of each client in the aggregate. Every method accepts every weighting."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from fedsat.metrics import ClassCounts
from fedsat.options import check
from fedsat.registry import Registry
from fedsat.tree import State, Tree

if TYPE_CHECKING:
    from fedsat.algorithms.base import Updates


STATEMENT = "weighting"
"""The name in `updates.uploads` of the numbers that clients send for the weighting."""


@dataclass(frozen=True)
class ClientWeights:
    """Weights of the round's clients, [K], non-negative with sum 1, and the scores they are based on."""

    weights: Tensor
    class_scores: Tensor | None = None
    """Score of each class, [m], if the weighting computes one; higher is worse."""
    client_scores: Tensor | None = None
    """Score of each client's model, [K]; higher is worse."""

    @property
    def effective_clients(self) -> float:
        """1/Σw², the number of equally weighted clients with the same averaging effect."""
        return float(1 / self.weights.square().sum()) if len(self.weights) else 0.0


@dataclass(frozen=True)
class Weighting:
    """Compute weights from what the server knows about the round's updates."""

    needs_counts: ClassVar[bool] = False
    """Whether workers must evaluate the clients' models first."""
    public: ClassVar[bool] = False
    """Whether the weights depend on nothing but who responded and the numbers of samples, which are public."""
    equal: ClassVar[bool] = False
    """Whether all clients that responded have the same weight."""

    def __post_init__(self) -> None:
        check(self, "weighting")

    @property
    def needs_each_report(self) -> bool:
        """Whether the weighting needs the individual worker reports rather than their sums."""
        return False

    def statement(self, class_counts: Tensor) -> Tree:
        """Return what each client computes from its class counts [C, m] and uploads for `weigh`, usually nothing.

        Clients do not send the counts themselves. `weigh` finds the numbers in `updates.uploads[STATEMENT]`.
        """
        del class_counts
        return {}

    def scale(self, samples: Tensor, mean: float) -> Tensor | None:
        """Return what clients multiply their updates by, from their numbers of samples [K] and the mean over clients.

        With secure aggregation, the server sees only the sum of the products. The weights must be the scales divided by
        their sum. The result is None if a client cannot compute its scale alone.
        """
        del samples, mean
        return None

    def own_scale(self, counts: ClassCounts) -> Tensor | None:
        """Return what clients multiply their updates by if each evaluates only its own model (w = 1), in (0, 1], [K].

        With secure aggregation, `weigh` is not used: the server sees only the sum of the products and of the scales.
        The result is None if a client's weight depends on the counts of others.
        """
        del counts
        return None

    def weigh(self, updates: Updates, counts: ClassCounts | None) -> ClientWeights:
        """Return the weights of the clients in `updates`; `counts` are the worker reports, if needed."""
        raise NotImplementedError


def with_statement(uploads: State, weighting: Weighting, class_counts: Tensor) -> State:
    """Return what clients upload for the method and, if the weighting needs it, their statement."""
    statement = weighting.statement(class_counts)
    return {**uploads, STATEMENT: statement} if statement else uploads


weightings: Registry[Weighting] = Registry("weighting", Weighting, "weightings")


@weightings.register("samples")
@dataclass(frozen=True)
class BySamples(Weighting):
    """Weights proportional to the number of samples, n_k/n_S."""

    public: ClassVar[bool] = True

    def scale(self, samples: Tensor, mean: float) -> Tensor:
        """Return n_k/(n/N), which is near 1."""
        return samples / mean

    def weigh(self, updates: Updates, counts: ClassCounts | None) -> ClientWeights:
        """Return n_k divided by the number of samples of the active clients."""
        del counts
        sizes = updates.sizes.to(torch.float64)
        return ClientWeights(sizes / sizes.sum())


@weightings.register("uniform")
@dataclass(frozen=True)
class Uniform(Weighting):
    """The same weight for every client, 1/|S|."""

    public: ClassVar[bool] = True
    equal: ClassVar[bool] = True

    def scale(self, samples: Tensor, mean: float) -> Tensor:
        """Return 1."""
        del mean
        return torch.ones_like(samples)

    def weigh(self, updates: Updates, counts: ClassCounts | None) -> ClientWeights:
        """Return 1/|S| for every client."""
        del counts
        sizes = updates.sizes.to(torch.float64)
        return ClientWeights(torch.full_like(sizes, 1 / len(sizes)))
