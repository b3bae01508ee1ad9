"""What a node reports about models as a worker, and the differential privacy that this spends.

The node does not trust the server, which decides what to ask for, so it keeps its own ledger. The ledger adds up every
update and report that the node has sent in this run, with the noise that they actually had.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from fedsat.algorithms import Model
from fedsat.engine import SequentialEngine
from fedsat.experiment.config import Config
from fedsat.flower.agreement import Agreement, AgreementError
from fedsat.flower.memory import Memory
from fedsat.metrics import ClassCounts
from fedsat.rounds.ledger import Budget, gaussian_epsilon
from fedsat.rounds.privacy import Local
from fedsat.tree import Tree


def report(engine: SequentialEngine, memory: Memory, client: int, models: Mapping[str, Model]) -> Tree:
    """Return Z, TP and T, [3, m], for each model (client axis of length one), with noise if the run asks for it.

    The noise on T is drawn once in a run, because T is charged once.
    """
    held, reports = engine.held_by_workers(np.array([client]))[0], dict[str, Tensor]()
    privacy, source = engine.protection.privacy, engine.protection.sources
    for name, model in models.items():
        counts = ClassCounts.from_confusion(engine.count_by_node(model, [held])[0])
        predicted, correct, labels = counts.predicted.cpu(), counts.correct.cpu(), counts.labels.cpu()
        if isinstance(privacy, Local):
            predicted, correct = privacy.noised(predicted, correct, source("private counts"))
            kept = memory.labels
            labels = privacy.noised_labels(labels, source("private labels")) if kept is None else kept
            memory.labels = labels
        reports[name] = torch.stack([predicted, correct, labels])
    return reports


def charge(config: Config, agreement: Agreement, memory: Memory, *, updates: int = 0, reports: int = 0) -> None:
    """Charge updates and reports on models to this node, or refuse to send them if a budget does not allow it."""
    privacy = config.privacy
    if not isinstance(privacy, Local):
        if agreement.budget:
            raise AgreementError("privacy must be 'local', because this node has a budget of its own (budget)")
        return
    spent = memory.spent
    spent[privacy.dp_noise] = spent.get(privacy.dp_noise, 0) + updates
    histogram = reports > 0 and memory.labels is None
    spent[privacy.dp_counts] = spent.get(privacy.dp_counts, 0) + reports + histogram
    for limit in (Budget.of(text) for text in (config.budget, agreement.budget) if text):
        epsilon = gaussian_epsilon(tuple(sorted(spent.items())), limit.delta)
        if epsilon > limit.epsilon:
            raise AgreementError(
                f"the request would spend ε = {epsilon:.3g} of this node's privacy at δ = {limit.delta:g}; "
                f"the budget is {limit.epsilon:g} (budget)"
            )
    memory.spent = spent


def refuse_exact(config: Config, what: str) -> None:
    """Refuse to send an exact number that differential privacy does not cover."""
    if config.privacy.active:
        raise AgreementError(f"{what} would be exact, and the run has differential privacy")
