"""Checks of what the server receives: it refuses updates that cannot be averaged, and contradictory worker reports."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fedsat.algorithms import Model
from fedsat.algorithms.base import client_updates
from fedsat.algorithms.weighting import Weighting
from fedsat.metrics import ClassCounts
from fedsat.rounds.local import TrainedRound, diverged, finite_clients
from fedsat.rounds.secure import enough, too_large
from fedsat.secure.fixed import LARGEST
from fedsat.tree import norms

Refused = dict[int, str]
"""Refused nodes and the reason for each."""


def refuse_updates(
    trained: TrainedRound, start: Model, max_norm: float, round_number: int
) -> tuple[TrainedRound, Refused]:
    """Return the updates without those that are not finite or too long, and the clients that sent these.

    An update is too long if its `stretch` exceeds `max_norm` (0: no limit). If no update is finite, an error stops the
    training.
    """
    whole = finite_clients(trained).cpu()  # a few numbers, for which a GPU would need many kernels
    if not bool(whole.any()):
        raise diverged(trained, round_number)
    updates = trained.updates
    stretches = torch.zeros(len(whole))
    if max_norm:
        steps = updates.optimizer.effective_steps(updates.steps.cpu())
        stretches = stretch(norms(client_updates(start, updates)).cpu(), steps, whole)
    far = whole & (stretches > max_norm)
    if bool((whole & ~far).all()):
        return trained, {}
    refused: Refused = {}
    for place, client in enumerate(trained.updates.clients.tolist()):
        if not whole[place]:
            refused[client] = "not finite"
        elif far[place]:
            refused[client] = f"update is {float(stretches[place]):.3g} times as long as the median"
    return trained.take(torch.nonzero(whole & ~far).flatten().tolist()), refused


def refuse_too_large(
    trained: TrainedRound, start: Model, weighting: Weighting, sampled: int
) -> tuple[TrainedRound, Refused]:
    """Return the updates without those that clients cannot send with secure aggregation, and these clients.

    Scales are relative to the mean size, which changes if a client is left out, so it looks again. If too few would
    remain, it leaves the updates as they are, and the aggregation raises an error.
    """
    left, refused = trained, dict[int, str]()
    while bool((large := too_large(start, left.updates, weighting)).any()):
        for client in left.updates.clients[large.cpu()].tolist():
            refused[client] = f"update has a number above {LARGEST:g}, too large for secure aggregation"
        remaining = torch.nonzero(~large).flatten().tolist()
        if not enough(sampled, len(remaining)):
            return trained, {}
        left = left.take(remaining)
    return left, refused


def stretch(lengths: Tensor, steps: Tensor, whole: Tensor) -> Tensor:
    """Return the lengths ‖θ_k − Θ‖ relative to the median of the `whole` updates, [K].

    A client that took more steps than the median is allowed a proportionally longer update. Otherwise, with uneven
    sizes, the largest honest client would be refused first. If the median is 0, the result is 0.
    """
    taken = steps.to(lengths)
    longer = (taken / torch.quantile(taken[whole], 0.5)).clamp(min=1)
    middle = torch.quantile(lengths[whole], 0.5)
    return torch.where(middle > 0, lengths / (middle * longer), 0.0)


def refuse_reports(counts: ClassCounts) -> tuple[ClassCounts, Refused]:
    """Return the reports without those of workers that contradict themselves, and a list of these workers.

    Every report must satisfy 0 ≤ TP ≤ min(T, Z) for each class and ΣZ = ΣT, and T must be the same in all reports of a
    worker. A worker that violates this once is ignored for the whole round.
    """
    predicted, correct, labels = counts.predicted, counts.correct, counts.labels
    if counts.workers is None:
        raise ValueError("refusing reports requires the workers' identities")
    workers = counts.workers.cpu().numpy()
    possible = ((correct >= 0) & (correct <= torch.minimum(labels, predicted))).all(-1)
    possible &= predicted.sum(-1) == labels.sum(-1)
    held = labels.cpu().numpy()
    reported = held.any(axis=-1)
    nodes, first, node = np.unique(workers[reported], return_index=True, return_inverse=True)
    changing = (held[reported] != held[reported][first][node]).any(axis=-1)
    refused = {int(liar): "labels differ between reports" for liar in nodes[np.unique(node[changing])]}
    refused |= {int(liar): "impossible counts" for liar in np.unique(workers[~possible.cpu().numpy()])}
    if not refused:
        return counts, {}
    liars = torch.from_numpy(np.isin(workers, list(refused)))
    return counts.without(liars.to(labels.device)), refused
