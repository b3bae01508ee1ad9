"""FedSat's prioritized-class weights (paper, eq. 11–19; SPEC §4), from counts that worker nodes report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import torch
from torch import Tensor

from fedsat.algorithms.reports import believable, median_rates, ratio, recall_on_own_classes, summed
from fedsat.algorithms.weighting import ClientWeights, Weighting, weightings
from fedsat.errors import UsageError
from fedsat.metrics import ClassCounts
from fedsat.options import Option

if TYPE_CHECKING:
    from fedsat.algorithms.base import Updates

SLACK = 1 + 1e-9
"""Clients with equal scores must pass or fail the threshold together, whatever the rounding of their mean."""


@weightings.register("pwa")
@dataclass(frozen=True)
class PrioritizedClassWeights(Weighting):
    """Clients by how well their models do on the classes that struggle, as worker nodes measure it (FedSat)."""

    alpha: Annotated[float, Option("α, share of the false negative rate in the score", at_least=0)] = 0.3
    beta: Annotated[float, Option("β, share of the false positive rate in the score", at_least=0)] = 0.2
    sigma: Annotated[float, Option("σ, clients scoring above σ · mean are left out", above=0)] = 2.0
    weights: Annotated[
        Literal["priority", "product"],
        Option("ϑ: the priority factor alone, or the paper's product of counts with it"),
    ] = "priority"
    priority: Annotated[
        Literal["soft", "hard"],
        Option("P: every class by how much it struggles, or true positives of the one priority class (paper)"),
    ] = "soft"
    fnr: Annotated[
        Literal["paper", "standard"], Option("false negatives over true positives (as printed) or over labels")
    ] = "paper"
    min_effective: Annotated[
        float,
        Option("weights are evened out until 1/Σϑ² is this share of the clients", at_least=0, at_most=1),
    ] = 0.9

    statistics: Annotated[
        Literal["sum", "median"],
        Option("workers' counts summed, or their rates with the median taken, which a few liars cannot move"),
    ] = "sum"
    min_recall: Annotated[
        float,
        Option(
            "clients are left out whose model reaches less than this share of what the best quarter reach in recall of "
            "the classes that the client itself holds, as other workers see it; 0: not asked",
            at_least=0,
            at_most=1,
        ),
    ] = 0.0

    needs_counts: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.alpha + self.beta == 0:
            raise UsageError("weighting.alpha and weighting.beta are both 0; one of them must be positive")

    @property
    def needs_each_report(self) -> bool:
        """Medians are taken over workers, and what a client says of itself is set against what others see."""
        return self.statistics == "median" or self.min_recall > 0

    def weigh(self, updates: Updates, counts: ClassCounts | None) -> ClientWeights:
        """ϑ over A_t, 0 for the clients left out."""
        del updates
        if counts is None:
            raise ValueError("prioritized-class weights need the workers' counts")
        if self.statistics == "median":
            counts = believable(counts)
            predicted, correct, labels = median_rates(counts)
        else:
            predicted, correct, labels = summed(counts)
        scores = self.scores(predicted, correct, labels)
        totals = scores.sum(1)
        accepted = self.accepted(totals, self.competent(counts))
        raw = self.priorities(scores, correct, labels)
        if self.weights == "product":
            raw = raw * self.quality(totals, correct, labels)
        weights = torch.zeros_like(raw)
        weights[accepted] = evened(raw[accepted], self.min_effective)
        return ClientWeights(weights, class_scores=scores.sum(0), client_scores=totals)

    def scores(self, predicted: Tensor, correct: Tensor, labels: Tensor) -> Tensor:
        """E_{k,i} = α FNR_i/max FNR + β FPR_i/max FPR, [K, m]."""
        missed = labels - correct
        fnr = missed / correct.clamp(min=1) if self.fnr == "paper" else ratio(missed, labels)
        fpr = ratio(predicted - correct, labels.sum(1, keepdim=True) - labels)
        return self.alpha * ratio(fnr, fnr.amax(1, keepdim=True)) + self.beta * ratio(fpr, fpr.amax(1, keepdim=True))

    def accepted(self, totals: Tensor, competent: Tensor) -> Tensor:
        """A_t: the competent with Σ_i E_{k,i} ≤ σ · mean, or the lowest-scoring of them if none is; a mask [K]."""
        mean = totals[competent].mean()
        accepted = competent & (totals <= self.sigma * mean * SLACK)
        return accepted if bool(accepted.any()) else competent & (totals == totals[competent].min())

    def competent(self, counts: ClassCounts) -> Tensor:
        """The clients whose models know what their clients hold, a mask [K]; never empty, as the best quarter do.

        The measure is the upper quartile, not the median: bad models are found low, so that it holds even in a round
        which happens to call more attackers than others. The paper's score cannot tell: it is divided by each client's
        own maximum, so that a model which is wrong everywhere scores no worse than one that is wrong somewhere.
        """
        recall = recall_on_own_classes(counts)
        unknown = recall.isnan()
        if not self.min_recall or bool(unknown.all()):
            return torch.ones_like(unknown)
        return unknown | (recall >= self.min_recall * recall[~unknown].quantile(0.75))

    def priorities(self, scores: Tensor, correct: Tensor, labels: Tensor) -> Tensor:
        """P_k, [K]."""
        struggling = scores.sum(0)
        if self.priority == "hard":
            return correct[:, struggling.argmax()].clamp(min=1)
        accuracy = ratio(correct, labels)
        if not bool(struggling.any()):  # no model makes a mistake: all classes count alike
            return accuracy.mean(1)
        return accuracy @ (struggling / struggling.sum())

    def quality(self, totals: Tensor, correct: Tensor, labels: Tensor) -> Tensor:
        """ΣACC · ΣTP / ΣE / (ΣT − ΣTP), the factors of eq. 18 besides P_k.

        A client with a mistake has ΣE ≥ α + β (some class has FNR/max FNR = 1, some class FPR/max FPR = 1) and
        misses at least one sample: these are the floors that keep a perfect client finite.
        """
        accuracy = ratio(correct, labels).sum(1)
        hits, misses = correct.sum(1), (labels - correct).sum(1).clamp(min=1)
        return accuracy * hits / totals.clamp(min=self.alpha + self.beta) / misses


def evened(raw: Tensor, min_effective: float) -> Tensor:
    """ϑ ∝ raw^τ with sum 1 and the largest τ ≤ 1 for which 1/Σϑ² ≥ min_effective · |A_t| (SPEC §4).

    1/Σϑ² falls steadily from |A_t| as τ grows from 0, so bisection finds τ. A client that got no weight at
    all keeps a trace, so that it can be evened out as well; if nobody got any, all weigh alike.
    """
    highest = raw.max()
    if highest <= 0:
        return torch.full_like(raw, 1 / len(raw))
    logs = (raw / highest).clamp(min=1e-12).log()
    floor = min_effective * len(raw) * (1 - 1e-12)

    def tempered(tau: float) -> Tensor:
        return torch.softmax(tau * logs, 0)

    def enough(tau: float) -> bool:
        return bool(1 / tempered(tau).square().sum() >= floor)

    if enough(1.0):
        return tempered(1.0)
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if enough(middle) else (low, middle)
    return tempered(low)
