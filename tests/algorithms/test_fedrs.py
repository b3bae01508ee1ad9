"""FedRS's restricted softmax worked out by hand, and the special case that equals FedAvg."""

from __future__ import annotations

import math

import pytest
import torch

from fedsat.algorithms import FedAvg, FedRS, Outputs, RestrictedSoftmax
from tests.support.byhand import after_rounds, make_batch, make_task, same

COUNTS = torch.tensor([[2, 4, 0], [0, 3, 0]])


def test_loss_and_gradient_by_hand() -> None:
    # The client lacks class 2: its logit 2 log 4 becomes log 4 with α = ½. p = (1, 1, 4)/6, −log p_0 = log 6.
    objective = RestrictedSoftmax(alpha=0.5)
    carry = objective.begin(make_task(1, class_counts=COUNTS[:1]), {})
    f = torch.tensor([[[0, 0, 2 * math.log(4)]]], dtype=torch.float64, requires_grad=True)
    loss, after = objective.loss(carry, Outputs(f), make_batch([[[0.0]]], [[0]]))
    assert after is carry
    assert loss.item() == pytest.approx(math.log(6))
    # d/df_i = α_i (p_i − [i = y]): the missing class gets half of 4/6.
    (grad,) = torch.autograd.grad(loss.sum(), f)
    assert grad.flatten().tolist() == pytest.approx([-5 / 6, 1 / 6, 2 / 6])


def test_factors_are_each_clients_own() -> None:
    task = make_task(2, class_counts=COUNTS)
    missing = RestrictedSoftmax(alpha=0.5).begin(task, {})["factor"]
    assert missing.tolist() == [[1, 1, 0.5], [0.5, 1, 0.5]]
    # By shares: α + (1 − α) n_i/max n = 0.2 + 0.8·½ for the first class.
    share = RestrictedSoftmax(alpha=0.2, scale="share").begin(task, {})["factor"]
    assert share.flatten().tolist() == pytest.approx([0.6, 1, 0.2, 0.2, 1, 0.2])


def test_alpha_one_and_all_classes_are_fedavg_bit_for_bit() -> None:
    assert same(after_rounds(FedRS(objective=RestrictedSoftmax(alpha=1))), after_rounds(FedAvg()))
    assert same(after_rounds(FedRS(), partition="iid"), after_rounds(FedAvg(), partition="iid"))
    assert not same(after_rounds(FedRS()), after_rounds(FedAvg()))
