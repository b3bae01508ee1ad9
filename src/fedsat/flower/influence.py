"""Bounds on what one node can do to numbers that are pooled over all nodes.

The server cannot see how many samples a node has, and only knows what the node reports. A node therefore counts as
having at most `max_weight` times the median of all nodes: in the weights, in the evaluations as a worker, and in the
test.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedsat.data.arrays import deviation
from fedsat.data.datasets import Moments
from fedsat.flower.messages import NodeInfo

SPREAD = 5.0
"""Largest distance of a node's mean from the median of all nodes, in the federation's standard deviations."""


def limit(samples: Iterable[int], max_weight: float) -> int | None:
    """Return the largest number of samples that a node can count as having, or None if there is no limit."""
    known = [number for number in samples if number]
    return max(1, int(max_weight * np.median(known))) if max_weight and known else None


def counted(samples: int, most: int | None) -> int:
    """Return the number of samples that a node counts as having."""
    return samples if most is None else min(samples, most)


def damped_counts(counts: Tensor, most: int | None) -> Tensor:
    """Return a worker's counts [3, m] (Z, TP, T) as if it had at most `most` samples, with the same rates.

    T depends only on the given T, so it stays the same in all reports of a worker, and ΣZ = ΣT as before.
    """
    predicted, correct, labels = counts.tolist()
    samples = sum(labels)
    if most is None or samples <= most:
        return counts
    held = [number * most // samples for number in labels]
    hits = [min(number * most // samples, own) for number, own in zip(correct, held, strict=True)]
    wrong = _divided(sum(held) - sum(hits), [z - tp for z, tp in zip(predicted, correct, strict=True)])
    return torch.tensor([[hit + miss for hit, miss in zip(hits, wrong, strict=True)], hits, held])


def damped_confusion(confusion: Tensor, most: int | None) -> Tensor:
    """Return confusion matrices [models, m, m] as if they counted at most `most` samples each."""
    samples = int(confusion[0].sum())
    if most is None or samples <= most:
        return confusion
    scaled = [[[cell * most // samples for cell in row] for row in one] for one in confusion.tolist()]
    return torch.tensor(scaled)


def damped_histograms(histograms: Tensor, most: int | None) -> Tensor:
    """Return histograms of scores [models, m + 1, BINS, 2] as if they counted at most `most` samples each.

    The cumulative counts are scaled, so that rounding neither empties cells of one sample nor shifts scores.
    """
    samples = int(histograms[0, 0].sum())
    if most is None or samples <= most:
        return histograms
    return torch.diff(histograms.cumsum(2) * most // samples, dim=2, prepend=torch.zeros_like(histograms[:, :, :1]))


def _divided(total: int, shares: Sequence[int]) -> list[int]:
    """Divide a whole number in proportion to `shares`; what rounding leaves goes to the largest."""
    if not total:
        return [0] * len(shares)
    parts = [total * share // sum(shares) for share in shares]
    parts[parts.index(max(parts))] += total - sum(parts)
    return parts


def pooled_moments(infos: Sequence[NodeInfo], max_weight: float = 0.0) -> Moments:
    """Return mean and standard deviation over all nodes' samples: Var = Σ n_k (Var_k + (μ_k − μ)²)/n.

    First, each μ_k is limited to a distance of SPREAD · s from the median m of all nodes, and Var_k to (SPREAD s)². s²
    is the median of Var_k + (μ_k − m)². A minority of nodes, whatever they send, can therefore move the mean and the
    deviation only by a few s. Where most nodes are constant, s is 0 and so is the deviation.
    """
    sizes = [info.samples + info.validation for info in infos]
    most = limit(sizes, max_weight)
    samples = np.array([counted(size, most) for size in sizes], dtype=np.float64)
    means, variances = (np.stack([info.moments[key].numpy() for info in infos]) for key in ("mean", "variance"))
    centre = np.median(means, axis=0)
    reach = SPREAD * np.sqrt(np.median(variances + (means - centre) ** 2, axis=0))
    means, variances = np.clip(means, centre - reach, centre + reach), np.minimum(variances, reach**2)
    shares = (samples / samples.sum())[:, None]
    mean = (shares * means).sum(0)
    variance = (shares * (variances + (means - mean) ** 2)).sum(0)
    return _numbers(mean), _numbers(deviation(mean, variance))


def _numbers(values: NDArray[np.float64]) -> tuple[float, ...]:
    return tuple(values.tolist())
