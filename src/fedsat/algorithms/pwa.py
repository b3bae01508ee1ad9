"""FedSat's prioritized-class weights (paper, eq. 11–21), computed from the counts that workers report."""

from __future__ import annotations

import math
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

LEAST = 1e-3
"""The smallest scale of a client that evaluates only its own model, so that scales never add up to zero."""

SLACK = 1 + 1e-9
"""Tolerance so that clients with equal scores pass or fail the threshold together despite rounding."""


@weightings.register("pwa")
@dataclass(frozen=True)
class PrioritizedClassWeights(Weighting):
    """Weights by how well workers find a client's model to do on the classes with the most errors (FedSat)."""

    alpha: Annotated[float, Option("α, weight of the false negative rate in the score", at_least=0)] = 0.3
    beta: Annotated[float, Option("β, weight of the false positive rate in the score", at_least=0)] = 0.2
    sigma: Annotated[float, Option("σ; clients with scores above σ · mean are excluded", above=0)] = 2.0
    weights: Annotated[
        Literal["priority", "product"],
        Option("ϑ: the priority factor alone, or the paper's product of counts and priority factor"),
    ] = "priority"
    priority: Annotated[
        Literal["soft", "hard"],
        Option("P: accuracy weighted by the classes' scores, or true positives of the priority class (paper)"),
    ] = "soft"
    fnr: Annotated[
        Literal["paper", "standard"], Option("divide false negatives by true positives (as printed) or by labels")
    ] = "paper"
    min_effective: Annotated[
        float,
        Option("flatten weights until 1/Σϑ² is at least this share of the clients", at_least=0, at_most=1),
    ] = 0.9

    statistics: Annotated[
        Literal["sum", "median"],
        Option("sum of the workers' counts, or medians of their rates, which a few malicious workers cannot shift"),
    ] = "sum"
    min_recall: Annotated[
        float,
        Option(
            "exclude clients whose recall on the classes they hold, as other workers evaluate it, is below this share "
            "of the round's upper quartile; 0: no filter",
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
        """Whether reports are used one by one: for medians, or to compare a client's claims with other reports."""
        return self.statistics == "median" or self.min_recall > 0

    def weigh(self, updates: Updates, counts: ClassCounts | None) -> ClientWeights:
        """Return ϑ over A_t, and 0 for excluded clients."""
        if counts is None:
            raise ValueError("prioritized-class weights need the workers' counts")
        counts = counts.to("cpu")  # a few numbers, for which a GPU would need hundreds of kernels
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
        return ClientWeights(weights.to(updates.steps.device), class_scores=scores.sum(0), client_scores=totals)

    def own_scale(self, counts: ClassCounts) -> Tensor | None:
        """Return a + (1 − a) · mean_i ACC_{k,i}, where a = (1 − x)/(1 + x) and x = √(1 − min_effective).

        Which classes struggle only all clients together know, so all count alike. Of numbers between a and 1,
        (Σs)²/Σs² is at least 4a/(1 + a)² of their number (Kantorovich), and a is chosen to make this `min_effective`.
        """
        if self.needs_each_report or (self.weights, self.priority) != ("priority", "soft"):
            return None
        root = math.sqrt(1 - self.min_effective)
        least = max((1 - root) / (1 + root), LEAST)
        _, correct, labels = summed(counts)
        return least + (1 - least) * ratio(correct, labels).mean(1)

    def scores(self, predicted: Tensor, correct: Tensor, labels: Tensor) -> Tensor:
        """Return E_{k,i} = α FNR_i/max FNR + β FPR_i/max FPR, [K, m] (eq. 18)."""
        missed = labels - correct
        fnr = missed / correct.clamp(min=1) if self.fnr == "paper" else ratio(missed, labels)
        fpr = ratio(predicted - correct, labels.sum(1, keepdim=True) - labels)
        return self.alpha * ratio(fnr, fnr.amax(1, keepdim=True)) + self.beta * ratio(fpr, fpr.amax(1, keepdim=True))

    def accepted(self, totals: Tensor, competent: Tensor) -> Tensor:
        """Return A_t (eq. 20) as a mask [K]: Σ_i E_{k,i} ≤ σ · mean, or the lowest scores if none qualifies."""
        mean = totals[competent].mean()
        accepted = competent & (totals <= self.sigma * mean * SLACK)
        return accepted if bool(accepted.any()) else competent & (totals == totals[competent].min())

    def competent(self, counts: ClassCounts) -> Tensor:
        """Return a mask [K] of the clients whose models recognise the classes that the client holds; never empty.

        The threshold is relative to the upper quartile, not the median: malicious models have low recall, so it holds
        even if most of the sampled clients are attackers. The paper's score cannot detect them. It is divided by each
        client's own maximum, so a model that is wrong everywhere scores no worse than one that is wrong somewhere.
        """
        recall = recall_on_own_classes(counts)
        unknown = recall.isnan()
        if not self.min_recall or bool(unknown.all()):
            return torch.ones_like(unknown)
        return unknown | (recall >= self.min_recall * recall[~unknown].quantile(0.75))

    def priorities(self, scores: Tensor, correct: Tensor, labels: Tensor) -> Tensor:
        """Return P_k, [K]."""
        struggling = scores.sum(0)
        if self.priority == "hard":
            return correct[:, struggling.argmax()].clamp(min=1)
        accuracy = ratio(correct, labels)
        if not bool(struggling.any()):  # no model makes a mistake: all classes have the same weight
            return accuracy.mean(1)
        return accuracy @ (struggling / struggling.sum())

    def quality(self, totals: Tensor, correct: Tensor, labels: Tensor) -> Tensor:
        """Return ΣACC · ΣTP / ΣE / (ΣT − ΣTP), the factors of eq. 21 besides P_k.

        A client with any mistake has ΣE ≥ α + β (FNR/max FNR = 1 for some class, FPR/max FPR = 1 for some class) and at
        least one miss. These lower bounds keep the weight of a perfect client finite.
        """
        accuracy = ratio(correct, labels).sum(1)
        hits, misses = correct.sum(1), (labels - correct).sum(1).clamp(min=1)
        return accuracy * hits / totals.clamp(min=self.alpha + self.beta) / misses


def evened(raw: Tensor, min_effective: float) -> Tensor:
    """Return ϑ ∝ raw^τ with sum 1 and the largest τ ≤ 1 for which 1/Σϑ² ≥ min_effective · |A_t|.

    1/Σϑ² decreases from |A_t| as τ grows from 0, so bisection finds τ. Clients with weight 0 get a tiny weight so that
    they can be raised too. If all weights are 0, the result is uniform.
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
