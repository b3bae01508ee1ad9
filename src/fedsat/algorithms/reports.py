"""What workers' reports tell of clients' models, when some of the workers may lie.

A sum of counts lets one worker decide: it need only claim enough samples. Here every worker counts once, by its rates,
and the middle of them is taken. What a client says of its own model, in the first column, is never believed; but what
it says it holds is held against it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedsat.metrics import ClassCounts

FAR_OFF = 0.4
"""Workers whose findings are further than this from the median ones, on average, are not believed."""


def ratio(numerator: Tensor, denominator: Tensor) -> Tensor:
    """The quotient, 0 where the denominator is 0."""
    return torch.where(denominator > 0, numerator / denominator.clamp(min=1e-300), 0.0)


def summed(counts: ClassCounts) -> tuple[Tensor, Tensor, Tensor]:
    """Z, TP and T summed over the workers, [K, m]."""
    predicted, correct, labels = (
        vector.sum(1).to(torch.float64) for vector in (counts.predicted, counts.correct, counts.labels)
    )
    return predicted, correct, labels


def median_rates(counts: ClassCounts) -> tuple[Tensor, Tensor, Tensor]:
    """Z, TP and T as summed counts would be if all workers saw the median rates, [K, m].

    The client's own report is left out, unless there is no other. Recall of a class is the median over the workers
    that hold it, the rate of false positives that over the workers that hold something else; each of the former
    holds as many samples of the class as the median one.
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
    """How much of what a client says it holds its model gets right at others, [K]; NaN where no other worker can tell.

    The median of what workers find, by what they have seen: a model that was trained on its client's samples does
    well here however few classes it knows.
    """
    found, seen = findings(counts)
    return torch.where(seen.sum(1) > 0, weighted_median(found, seen, dim=1), torch.nan)


def believable(counts: ClassCounts) -> ClassCounts:
    """The counts without the reports of workers who, over all clients they were asked about, find what nobody does.

    How far a worker is off is its mean distance from the median of all findings about a client, by what it has seen.
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
    """What each worker but the client itself finds of a client's model, and how much it has seen, [K, w − 1].

    With p the class mix that the client reports of itself, a worker has seen Σ_i p_i over the classes it holds, and
    finds Σ_i p_i TP_i/T_i over them, divided by what it has seen.
    """
    labels, correct = counts.labels.to(torch.float64), counts.correct.to(torch.float64)
    own, others = labels[:, :1], labels[:, 1:]
    claimed = own.sum(-1, keepdim=True) > 0
    mix = torch.where(claimed, ratio(own, own.sum(-1, keepdim=True)), 1 / own.shape[-1])
    seen = (mix * (others > 0)).sum(-1)
    return ratio((mix * ratio(correct[:, 1:], others)).sum(-1), seen), seen


def weighted_median(values: Tensor, weights: Tensor, dim: int) -> Tensor:
    """The smallest value up to which half of the weight lies; 0 where there is no weight (or no value) at all."""
    if values.shape[dim] == 0:
        return values.sum(dim)
    ordered, places = values.movedim(dim, -1).sort(dim=-1)
    heights = weights.to(values).movedim(dim, -1).gather(-1, places).cumsum(-1)
    half = heights[..., -1:] / 2
    first = (heights >= half).to(torch.int8).argmax(-1, keepdim=True)
    return torch.where(half[..., 0] > 0, ordered.gather(-1, first)[..., 0], 0.0)
