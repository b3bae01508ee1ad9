"""FedLC's calibrated logits by hand; missing classes, one class, and the special case that equals FedAvg."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

import fedsat
from fedsat.algorithms import FedAvg, FedLC, LogitCalibration, Outputs
from fedsat.errors import TrainingError
from tests.support.byhand import after_rounds, make_batch, make_task, same


def losses(
    objective: LogitCalibration, counts: list[int], logits: list[list[float]], labels: list[int]
) -> tuple[list[float], Tensor]:
    """Return the loss of each sample of one client, and the gradient of their sum with respect to the logits."""
    f = torch.tensor([logits], dtype=torch.float64, requires_grad=True)
    carry = objective.begin(make_task(1, class_counts=torch.tensor([counts])), {})
    loss, after = objective.loss(carry, Outputs(f), make_batch([[[0.0]] * len(labels)], [labels]))
    assert after is carry
    (grad,) = torch.autograd.grad(loss.sum(), f)
    return loss[0].tolist(), grad[0]


# The client has 1 sample of class 0, 16 of class 1 and none of class 2: with τ = 2 the margins are 2, 2/2 = 1 and ∞.
COUNTS = [1, 16, 0]


def test_softmax_form_by_hand() -> None:
    # f = (1, 0, 9): g = f − margin = (−1, −1, −∞): both classes ½, class 2 out of it however high its logit.
    objective = LogitCalibration(tau=2)
    values, grad = losses(objective, COUNTS, [[1, 0, 9], [1, 0, 9]], [0, 1])
    assert values == pytest.approx([math.log(2), math.log(2)])
    assert grad.flatten().tolist() == pytest.approx([-0.5, 0.5, 0, 0.5, -0.5, 0])
    # Equal logits: the rare class costs more than the frequent one, by the margin τ (1 − ½) between them.
    (rare, frequent), _ = losses(objective, COUNTS, [[0, 0, 0], [0, 0, 0]], [0, 1])
    assert (rare, frequent) == pytest.approx((math.log(1 + math.e), math.log(1 + 1 / math.e)))


def test_paper_form_leaves_the_true_class_out_and_has_no_minimum() -> None:
    # f = (3, 0, 9), y = 0: g = (1, −1): ℓ = −1 + (−1) = −2, below zero; the gradient never fades: (−1, 1, 0).
    values, grad = losses(LogitCalibration(tau=2, variant="paper"), COUNTS, [[3, 0, 9]], [0])
    assert values == pytest.approx([-2])
    assert grad.flatten().tolist() == pytest.approx([-1, 1, 0])
    # Three classes, margins 2, 1, 2: f = (3, 0, 1 + log 3), y = 0: log(e^{−1} + 3 e^{−1}) − 1 = log 4 − 2.
    values, _ = losses(LogitCalibration(tau=2, variant="paper"), [1, 16, 1], [[3, 0, 1 + math.log(3)]], [0])
    assert values == pytest.approx([math.log(4) - 2])


def test_paper_form_runs_away_and_the_error_names_the_client() -> None:
    with pytest.raises(TrainingError, match=r"round \d+, client \d+, step \d+"):
        after_rounds(FedLC(objective=LogitCalibration(variant="paper")), rounds=5)
    after_rounds(FedLC(), rounds=5)


@pytest.mark.parametrize("variant", ["softmax", "paper"])
def test_a_client_of_one_class_learns_nothing(variant: str) -> None:
    objective = LogitCalibration(variant=variant)  # type: ignore[arg-type]
    values, grad = losses(objective, [0, 7, 0], [[5, -3, 2], [0, 0, 0]], [1, 1])
    assert values == [0, 0]
    assert not bool(grad.any())


@pytest.mark.parametrize("variant", ["softmax", "paper"])
def test_padding_costs_nothing_even_with_a_label_that_the_client_lacks(variant: str) -> None:
    objective = LogitCalibration(variant=variant)  # type: ignore[arg-type]
    logits = torch.tensor([[[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]], requires_grad=True)
    carry = objective.begin(make_task(1, class_counts=torch.tensor([[0, 3, 4]])), {})
    loss, _ = objective.loss(carry, Outputs(logits), make_batch([[[0.0], [0.0]]], [[1, 0]], [[True, False]]))
    (grad,) = torch.autograd.grad(loss.sum(), logits)
    assert loss[0, 1].item() == 0
    assert loss[0, 0].item() != 0
    assert bool(torch.isfinite(grad).all())
    assert not bool(grad[0, 1].any())


def test_tau_zero_masks_and_nothing_else() -> None:
    values, _ = losses(LogitCalibration(tau=0), COUNTS, [[1, 0, 9]], [0])
    assert values == pytest.approx([math.log(1 + math.exp(-1))])


def test_tau_zero_with_all_classes_is_fedavg_bit_for_bit() -> None:
    flat = FedLC(objective=LogitCalibration(tau=0))
    assert same(after_rounds(flat, partition="iid"), after_rounds(FedAvg(), partition="iid"))
    assert not same(after_rounds(FedLC(), partition="ls"), after_rounds(FedAvg(), partition="ls"))


def test_counts_are_each_clients_own() -> None:
    counts = torch.tensor([[1, 16], [16, 1]])
    margins = LogitCalibration(tau=2).begin(make_task(2, class_counts=counts), {})["margin"]
    assert margins.tolist() == [[2, 1], [1, 2]]


def test_a_run_says_how_many_clients_learn_nothing() -> None:
    lonely = fedsat.prepare(fedsat.configure(algorithm="fedlc", clients=20, classes_per_client=1))
    assert [note for note in lonely.notes if note.startswith("20 clients have only one class")]
    paired = fedsat.prepare(fedsat.configure(algorithm="fedlc", clients=20, classes_per_client=2))
    assert np.all((paired.setup.federation.class_counts > 0).sum(1) == 2)
    assert not [note for note in paired.notes if "one class" in note]
