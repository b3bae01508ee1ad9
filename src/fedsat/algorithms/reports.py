"""Statistics of clients' models from worker reports when some workers may lie.

With summed counts, a single worker can decide the result by claiming enough samples. Here every worker counts once, by
its rates, and the median is used. A client's report about its own model (the first column) is ignored, but its model is
tested on the classes that the client claims to hold.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedsat.metrics import ClassCounts

FAR_OFF = 0.4
"""Ignore workers whose recall values differ from the median by more than this on average."""


def ratio(numerator: Tensor, denominator: Tensor) -> Tensor:
    """Return the quotient, or 0 where the denominator is 0."""
    return torch.where(denominator > 0, numerator / denominator.clamp(min=1e-300), 0.0)


def summed(counts: ClassCounts) -> tuple[Tensor, Tensor, Tensor]:
    """Return Z, TP and T summed over the workers, [K, m]."""
    predicted, correct, labels = (
        vector.sum(1).to(torch.float64) for vector in (counts.predicted, counts.correct, counts.labels)
    )
    return predicted, correct, labels


def median_rates(counts: ClassCounts) -> tuple[Tensor, Tensor, Tensor]:
    """Return Z, TP and T as if every worker had the median rates, [K, m].

    The client's own report is excluded unless it is the only one. The recall of a class is the median over the workers
    that hold the class. The false positive rate is the median over the workers that hold other classes. Every worker
    that holds a class counts with the median number of samples.
    """
    first = 1 if counts.labels.shape[1] > 1 else 0
    predicted, correct, labels = (
        vector[:, first:].to(torch.float64) for vector in (counts.predicted, counts.correct, counts.labels)
    )
    others = labels.sum(-1, keepdim=True) - labels
    holders = labels > 0
    size = weighted_median(labels, holders, dim=1) * holders.sum(1)
    recall = weighted_median(ratio(correct, labels), holders, dim=1)
    false_positives = weighted_median(ratio(predicted - correct, others), others > 0, dim=1)
    right = recall * size
    return right + false_positives * (size.sum(-1, keepdim=True) - size), right, size


def recall_on_own_classes(counts: ClassCounts) -> Tensor:
    """Return the recall of each client's model on the classes that the client claims to hold, [K].

    This is the weighted median of `findings`; NaN if no other worker holds any of these classes. A model that was
    trained on its client's samples does well here, even if it knows few classes.
    """
    found, seen = findings(counts)
    return torch.where(seen.sum(1) > 0, weighted_median(found, seen, dim=1), torch.nan)


def believable(counts: ClassCounts) -> ClassCounts:
    """Return the counts without the reports of workers that deviate from the others over all models they evaluated.

    The deviation of a worker is its mean distance from the median recall of each model, weighted as in `findings`.
    """
    if counts.workers is None or counts.labels.shape[1] == 1:
        return counts
    found, seen = findings(counts)
    distance = (found - weighted_median(found, seen, dim=1)[:, None]).abs()
    nodes = counts.workers[:, 1:].flatten()
    sums = torch.zeros(2, int(counts.workers.max()) + 1, dtype=torch.float64, device=seen.device)
    sums[0].index_add_(0, nodes, (seen * distance).flatten())
    sums[1].index_add_(0, nodes, seen.flatten())
    return counts.without((ratio(sums[0], sums[1]) > FAR_OFF)[counts.workers])


def findings(counts: ClassCounts) -> tuple[Tensor, Tensor]:
    """Return the recall that each other worker finds for a client's model, and its weight, both [K, w − 1].

    Let p be the class distribution that the client reports. The weight of a worker is Σ_i p_i over the classes that it
    holds, and its recall is Σ_i p_i TP_i/T_i over these classes, divided by the weight.
    """
    labels, correct = counts.labels.to(torch.float64), counts.correct.to(torch.float64)
    own, others = labels[:, :1], labels[:, 1:]
    claimed = own.sum(-1, keepdim=True) > 0
    mix = torch.where(claimed, ratio(own, own.sum(-1, keepdim=True)), 1 / own.shape[-1])
    seen = (mix * (others > 0)).sum(-1)
    return ratio((mix * ratio(correct[:, 1:], others)).sum(-1), seen), seen


def weighted_median(values: Tensor, weights: Tensor, dim: int) -> Tensor:
    """Return the smallest value with at least half of the weight at or below it; 0 if there is no weight."""
    if values.shape[dim] == 0:
        return values.sum(dim)
    ordered, places = values.movedim(dim, -1).sort(dim=-1)
    heights = weights.to(values).movedim(dim, -1).gather(-1, places).cumsum(-1)
    half = heights[..., -1:] / 2
    first = (heights >= half).to(torch.int8).argmax(-1, keepdim=True)
    return torch.where(half[..., 0] > 0, ordered.gather(-1, first)[..., 0], 0.0)
