"""What a node reports about models as a worker, and the differential privacy that this spends.

The node does not trust the server, which decides what to ask for, so it keeps its own ledger. The ledger adds up every
update and report that the node has sent, with the noise that they actually had. The budget of the agreement holds for
all runs together, because the server could otherwise start a new run whenever the budget is spent.
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
            with memory.account() as account:
                kept = account.labels
                labels = privacy.noised_labels(labels, source("private labels")) if kept is None else kept
                account.labels = labels
        reports[name] = torch.stack([predicted, correct, labels])
    return reports


def charge(config: Config, agreement: Agreement, memory: Memory, *, updates: int = 0, reports: int = 0) -> None:
    """Charge updates and reports on models to this node, or refuse to send them if a budget does not allow it."""
    privacy = config.privacy
    if not isinstance(privacy, Local):
        return
    with memory.account() as account:
        account.spend({privacy.dp_noise: updates})
        account.spend({privacy.dp_counts: reports + (reports > 0 and account.labels is None)})
        _check_budget(config.budget, account.spent)
        _check_budget(agreement.budget, account.spent_in_all)


def _check_budget(text: str, spent: Mapping[float, int]) -> None:
    limit = Budget.of(text)
    epsilon = gaussian_epsilon(tuple(sorted(spent.items())), limit.delta) if text else 0.0
    if epsilon > limit.epsilon:
        raise AgreementError(
            f"the request would spend ε = {epsilon:.3g} of this node's privacy at δ = {limit.delta:g}; "
            f"the budget is {limit.epsilon:g} (budget)"
        )


def refuse_exact(config: Config, what: str) -> None:
    """Refuse to send an exact number that differential privacy does not cover."""
    if config.privacy.active:
        raise AgreementError(f"{what} would be exact, and the run has differential privacy")
