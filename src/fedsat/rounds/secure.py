"""Secure aggregation: the server learns the sum of the clients' updates, and no single one.

Each client multiplies its update by its scale (`Weighting.scale`) and rounds it to fixed-point numbers, whose sums are
exact. The server divides the sum by the sum of the scales. If clients evaluate their own models (`own_scale`), nobody
else knows a scale, and the sum of the scales is computed in the same way. On real nodes, `fedsat.secure.protocol`
computes the sum under masks. A simulation computes the same numbers without masks, which cancel.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from fedsat.algorithms import Aggregator, Algorithm, Model, Updates
from fedsat.algorithms.footprint import rehearse
from fedsat.algorithms.weighting import Weighting
from fedsat.errors import SkippedRoundError, TrainingError, UsageError
from fedsat.metrics import ClassCounts
from fedsat.secure.fixed import LARGEST, Floats, Words, decode, encode
from fedsat.secure.shares import FEWEST, PEERS, SIZE, threshold_of
from fedsat.tree import Tree, expand

INTRODUCTION, SEALED = 160, 2 * SIZE + 16
"""Bytes of a client's signed keys, and of the encrypted shares for one peer."""


def refuse_secure(algorithm: Algorithm, method: str, per_round: int, workers: int) -> None:
    """Raise an error if a method needs more than the sum of the updates."""
    why = why_not(algorithm, workers)
    if why is not None:
        raise UsageError(f"{method} cannot use secure aggregation: {why}")
    if per_round < FEWEST:
        raise UsageError(
            f"per_round is {per_round}; with secure aggregation, it must be at least {FEWEST}, or the sum would say "
            "too much about each client"
        )


def why_not(algorithm: Algorithm, workers: int) -> str | None:
    """Return what a method needs besides the sum of the updates, or None."""
    weighting = algorithm.weighting
    if weighting.needs_counts and workers > 1:
        return (
            "its weights depend on workers' evaluations of single clients' models, which nobody may see; "
            "use --workers 1, so that clients evaluate only their own models, or --without pwa"
        )
    if weighs_alone(weighting):
        none = torch.zeros(1, 1, 1)
        scale = weighting.own_scale(ClassCounts(none, none, none))
    else:
        scale = weighting.scale(torch.ones(1), 1.0)
    if scale is None:
        return "a client cannot compute its weight alone; use --with samples or --with uniform"
    if type(algorithm.aggregator) is not Aggregator:
        return "its aggregator compares single updates; use the mean"
    if not algorithm.uses_mean_only:
        return "its server uses more of the updates than their mean"
    _, uploads = rehearse(algorithm, Model({"w": torch.ones(1)}, {}))
    further = sorted(name for name, tree in uploads.items() if tree)
    return f"clients also upload {', '.join(further)}" if further else None


def weighs_alone(weighting: Weighting) -> bool:
    """Whether clients scale their updates by evaluations of their own models, so that nobody else knows the weights.

    They add their scale to what is summed. Without evaluations, the server knows the scales (`Weighting.scale`).
    """
    return weighting.needs_counts


def enough(sampled: int, responded: int) -> bool:
    """Whether the sum can be computed: shares of more than two thirds of the clients are needed to remove masks."""
    return sampled >= FEWEST and responded >= threshold_of(sampled)


def secure_mean(start: Model, updates: Updates, scales: Tensor) -> Updates:
    """Replace every model by the one with the mean update, computed from the sum of fixed-point numbers."""
    total: Words | None = None
    for row, scale in enumerate(scales.tolist()):
        model = Model(_row(updates.model.params, row), _row(updates.model.buffers, row))
        words = vector(start, model, scale)
        total = words if total is None else total + words
    assert total is not None
    return replace(updates, model=stacked(model_of(start, total, float(scales.sum())), len(scales)))


def too_large(start: Model, updates: Updates, weighting: Weighting) -> Tensor:
    """Return a mask [K] of the clients whose scaled updates have a number that is too large to be sent."""
    sizes = updates.sizes.double()
    # The scales of clients that evaluate themselves are at most 1.
    scales = torch.ones_like(sizes) if weighs_alone(weighting) else weighting.scale(sizes, float(sizes.mean()))
    assert scales is not None  # the configuration refuses such weightings
    pairs = zip(_tensors(start), _tensors(updates.model), strict=True)
    largest = [(theirs.double() - ours.double()).reshape(len(sizes), -1).abs().amax(1) for ours, theirs in pairs]
    return torch.stack(largest).amax(0) * scales > LARGEST


def vector(start: Model, model: Model, scale: float) -> Words:
    """Return the scaled update of a client, parameters and buffers, as fixed-point numbers."""
    pairs = zip(_tensors(start), _tensors(model), strict=True)
    moved = [(theirs.double() - ours.double()).flatten() * scale for ours, theirs in pairs]
    try:
        return encode(torch.cat(moved).cpu().numpy())
    except ValueError as error:
        raise TrainingError(
            f"an update cannot be aggregated securely: {error}; the largest value is {LARGEST:g}, try a smaller --lr"
        ) from error


def with_scale(words: Words, scale: float) -> Words:
    """Return a scaled update followed by its scale."""
    return np.concatenate([words, encode(np.array([scale]))])


def without_scales(total: Words, clients: int) -> tuple[Words, float]:
    """Return the sum of the updates and the sum of the scales, each of which is in (0, 1]."""
    scales = float(decode(total[-1:])[0])
    if not 0 < scales <= clients:
        raise SkippedRoundError(f"secure aggregation: the scales of {clients} clients add up to {scales:g}")
    return total[:-1], scales


def model_of(start: Model, total: Words, scales: float) -> Model:
    """Return the model with the mean update. Integers, such as BatchNorm's counters, are rounded."""
    mean: Floats = decode(total) / scales
    parts = iter(np.split(mean, np.cumsum([tensor.numel() for tensor in _tensors(start)])[:-1]))

    def moved(tree: Tree) -> Tree:
        found = {name: _moved(tree[name], next(parts)) for name in sorted(tree)}
        return {name: found[name] for name in tree}

    return Model(moved(start.params), moved(start.buffers))


def stacked(model: Model, clients: int) -> Model:
    """Return a model as that of every client."""
    return Model(expand(model.params, clients), expand(model.buffers, clients))


def keys_up(clients: int) -> int:
    """Return the bytes of keys and shares that a client uploads in a round."""
    peers = min(clients, PEERS + 1)
    return INTRODUCTION + (SEALED + SIZE) * peers


def keys_down(clients: int) -> int:
    """Return the bytes of keys and shares that a client downloads in a round, with the list of who responded."""
    peers = min(clients, PEERS + 1)
    return (INTRODUCTION + SEALED + 8) * peers


def length(trees: Iterable[Tree]) -> int:
    """Return the number of values of trees."""
    return sum(tensor.numel() for tree in trees for tensor in tree.values())


def _moved(tensor: Tensor, update: Floats) -> Tensor:
    found = tensor.double() + torch.from_numpy(update).to(tensor.device).reshape(tensor.shape)
    return (found if tensor.is_floating_point() else found.round()).to(tensor.dtype)


def _tensors(model: Model) -> Iterator[Tensor]:
    for tree in (model.params, model.buffers):
        yield from (tree[name] for name in sorted(tree))


def _row(tree: Tree, row: int) -> Tree:
    return {name: tensor[row] for name, tensor in tree.items()}
