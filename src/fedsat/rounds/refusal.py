"""What the server refuses before it weighs anything: updates that cannot be averaged, reports that cannot be true."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fedsat.algorithms import Model
from fedsat.algorithms.aggregator import norms
from fedsat.algorithms.base import client_updates
from fedsat.metrics import ClassCounts
from fedsat.rounds.local import TrainedRound, diverged, finite

Refused = dict[int, str]
"""Nodes that were refused, and why."""


def refuse_updates(
    trained: TrainedRound, start: Model, max_norm: float, round_number: int
) -> tuple[TrainedRound, Refused]:
    """The updates without those that are not finite or went too far, and who sent these.

    Too far is a `stretch` of more than `max_norm` (0: never). If nothing at all is finite, no round is left to play and
    the training stops.
    """
    whole = finite(trained)
    if not bool(whole.any()):
        raise diverged(trained, round_number)
    stretches = stretch(norms(client_updates(start, trained.updates)), trained.updates.steps, whole)
    far = whole & (stretches > max_norm) if max_norm else torch.zeros_like(whole)
    if bool((whole & ~far).all()):
        return trained, {}
    refused: Refused = {}
    for place, client in enumerate(trained.updates.clients.tolist()):
        if not whole[place]:
            refused[client] = "not finite"
        elif far[place]:
            refused[client] = f"moved {float(stretches[place]):.3g} times as far as the median"
    return trained.take(torch.nonzero(whole & ~far).flatten().tolist()), refused


def stretch(lengths: Tensor, steps: Tensor, whole: Tensor) -> Tensor:
    """How far updates of these lengths ‖θ_k − Θ‖ went, in medians of those that are `whole`, [K].

    A client that took more steps than the median one may go as much further: where sizes are uneven, the largest
    honest client would otherwise be the first to be refused. 0 where most did not move: there is no measure then.
    """
    taken = steps.to(lengths)  # device and kind
    longer = (taken / torch.quantile(taken[whole], 0.5)).clamp(min=1)
    middle = torch.quantile(lengths[whole], 0.5)
    return torch.where(middle > 0, lengths / (middle * longer), 0.0)


def refuse_reports(counts: ClassCounts) -> tuple[ClassCounts, Refused]:
    """The reports without those of workers that contradict themselves, and who these are.

    A report says 0 ≤ TP ≤ min(T, Z) in every class and ΣZ = ΣT, and a worker holds the same samples whomever it is
    asked about. A worker that breaks this once is not believed about anybody in the round.
    """
    predicted, correct, labels = counts.predicted, counts.correct, counts.labels
    if counts.workers is None:
        raise ValueError("reports can be refused only if it is known whose they are")
    workers = counts.workers.cpu().numpy()
    possible = ((correct >= 0) & (correct <= torch.minimum(labels, predicted))).all(-1)
    possible &= predicted.sum(-1) == labels.sum(-1)
    held = labels.cpu().numpy()
    reported = held.any(axis=-1)
    nodes, first, node = np.unique(workers[reported], return_index=True, return_inverse=True)
    changing = (held[reported] != held[reported][first][node]).any(axis=-1)
    refused = {int(liar): "labels that change from report to report" for liar in nodes[np.unique(node[changing])]}
    refused |= {int(liar): "counts that cannot be" for liar in np.unique(workers[~possible.cpu().numpy()])}
    if not refused:
        return counts, {}
    liars = torch.from_numpy(np.isin(workers, list(refused)))
    return counts.without(liars.to(labels.device)), refused
