"""FedVLS's three terms worked out by hand; padding, a client that has all classes, and one that has a single class."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from fedsat.algorithms import Outputs, VacantClassDistillation
from tests.support.byhand import make_batch, make_task


def losses(
    objective: VacantClassDistillation, counts: list[int], f: Tensor, received: Tensor, y: list[int], real: list[bool]
) -> Tensor:
    """The loss of each sample of one client."""
    carry = objective.begin(make_task(1, class_counts=torch.tensor([counts])), {})
    batch = make_batch([[[0.0]] * len(y)], [y], [real])
    found: Tensor = objective.loss(carry, Outputs(f.unsqueeze(0), received=received.unsqueeze(0)), batch)[0][0]
    return found


F = torch.tensor([[0, 0, 0, 0], [math.log(2), 0, math.log(3), 0]], dtype=torch.float64)
RECEIVED = torch.tensor([[0, 0, 0, math.log(3)], [0, 0, math.log(3), 0]], dtype=torch.float64)
COUNTS = [3, 1, 0, 0]
CALIBRATED = [-math.log(0.75), -math.log(0.25 / (2 * 0.75 + 0.25))]
"""CE(f + log π) with π = (¾, ¼, 0, 0), for labels 0 and 1."""


def test_calibrated_cross_entropy() -> None:
    found = losses(VacantClassDistillation(lam=0, suppression=0), COUNTS, F, RECEIVED, [0, 1], [True, True])
    assert found.tolist() == pytest.approx(CALIBRATED, abs=1e-7)


def test_distillation_is_over_vacant_classes() -> None:
    # Vacant are classes 2 and 3. First sample: q_glob = (¼, ¾), q = (½, ½): KL = ¼ log ½ + ¾ log(3/2).
    # Second: q_glob = q = (¾, ¼): 0.
    objective = VacantClassDistillation(lam=2, suppression=0)
    found = losses(objective, COUNTS, F, RECEIVED, [0, 1], [True, True])
    distance = 0.25 * math.log(0.5) + 0.75 * math.log(1.5)
    assert (found - torch.tensor(CALIBRATED)).tolist() == pytest.approx([2 * distance, 0], abs=1e-7)


def test_suppression_is_one_number_for_the_batch() -> None:
    # Class 0 (π = ¾): the sample of class 0 counts e⁰, the other e^{log 2 − log ¾ − log 4} = 2/3: log((1 + 2/3)/2).
    # Class 1 (π = ¼): the first sample counts e^{0 − log ¼ − log 4} = 1, the second e⁰: log(2/2) = 0.
    objective = VacantClassDistillation(lam=0, suppression=10)
    found = losses(objective, COUNTS, F, RECEIVED, [0, 1], [True, True])
    term = 10 * 0.75 * math.log(5 / 6)
    assert (found - torch.tensor(CALIBRATED)).tolist() == pytest.approx([term, term], abs=1e-6)


def test_padding_does_not_count() -> None:
    objective = VacantClassDistillation()
    padded = torch.cat([F, torch.full((1, 4), 9.0, dtype=torch.float64)]).requires_grad_()
    received = torch.cat([RECEIVED, RECEIVED[:1]])
    found = losses(objective, COUNTS, padded, received, [0, 1, 2], [True, True, False])
    assert torch.equal(found[:2], losses(objective, COUNTS, F, RECEIVED, [0, 1], [True, True]))
    (grad,) = torch.autograd.grad(found[:2].sum(), padded)
    assert not bool(grad[2].any())


@pytest.mark.parametrize("counts", [[1, 2, 3, 4], [7, 0, 0, 0]])
def test_all_classes_and_a_single_one(counts: list[int]) -> None:
    f = F.clone().requires_grad_()
    found = losses(VacantClassDistillation(lam=1, suppression=0), counts, f, RECEIVED, [0, 0], [True, True])
    (grad,) = torch.autograd.grad(found.sum(), f)
    assert bool(torch.isfinite(grad).all())
    share = torch.tensor(counts) / sum(counts)
    calibrated = -(F + (share + 1e-9).log()).log_softmax(-1)[:, 0]
    distilled = found.detach() - calibrated
    # A client with all classes distils nothing.
    assert bool((distilled[:1].abs() > 0.01).all()) == (0 in counts)
