"""The prediction-sensitive loss by hand (equations 3 and 4)."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fedsat.algorithms import (
    Batch,
    CrossEntropy,
    DistilledSensitiveLoss,
    Model,
    NotTrueDistillation,
    Outputs,
    PredictionSensitiveLoss,
    Task,
)
from fedsat.errors import UsageError
from tests.support.byhand import make_task


def logits_for(predictions: list[int], classes: int = 3) -> Tensor:
    """Return logits that predict the given classes: 2 for the predicted class, 0 for the others."""
    return 2.0 * torch.nn.functional.one_hot(torch.tensor([predictions]), classes).double()


def batch_of(labels: list[int]) -> Batch:
    y = torch.tensor([labels])
    return Batch(torch.zeros(1, len(labels), 1), y, torch.ones_like(y, dtype=torch.bool))


def empty(classes: int = 3) -> dict[str, Tensor]:
    return {"mistakes": torch.zeros(1, classes, classes)}


# Cross-entropy of logits (2, 0, 0): right −2 + log(e² + 2), wrong log(e² + 2).
RIGHT = math.log(math.exp(2) + 2) - 2
WRONG = math.log(math.exp(2) + 2)


def test_costs_grow_with_the_frequency_of_the_mistake() -> None:
    # True 0 0 0 1 2, predicted 1 1 2 0 2: M[0,1] = 2, M[0,2] = 1, M[1,0] = 1, M[2,2] = 1.
    # Off the diagonal min = 0, max = 2: cs(0,1) = 1 + 2/2 = 2, cs(0,2) = cs(1,0) = 1 + 1/2; right: 1.
    loss, carry = PredictionSensitiveLoss(epsilon2=2).loss(
        empty(), Outputs(logits_for([1, 1, 2, 0, 2])), batch_of([0, 0, 0, 1, 2])
    )
    expected = torch.tensor([[2 * WRONG, 2 * WRONG, 1.5 * WRONG, 1.5 * WRONG, RIGHT]]).double()
    torch.testing.assert_close(loss, expected)
    assert carry["mistakes"].tolist() == [[[0, 2, 1], [1, 0, 0], [0, 0, 1]]]


def test_batches_add_up_within_a_round() -> None:
    objective = PredictionSensitiveLoss(epsilon2=2)
    _, carry = objective.loss(empty(), Outputs(logits_for([1, 1])), batch_of([0, 0]))
    # Then one mistake 1→2: M[0,1] = 2, M[1,2] = 1, so cs(1,2) = 1 + 1/2.
    loss, _ = objective.loss(carry, Outputs(logits_for([2])), batch_of([1]))
    assert float(loss) == pytest.approx(1.5 * WRONG)


def test_as_printed_the_diagonal_counts() -> None:
    # True 0 0 0 0 1, predicted 0 0 0 1 1. All cells: max is the diagonal's 3, so cs(0,1) = 1 + 1/3.
    loss, _ = PredictionSensitiveLoss(epsilon2=2, over="all").loss(
        empty(), Outputs(logits_for([0, 0, 0, 1, 1])), batch_of([0, 0, 0, 0, 1])
    )
    assert float(loss[0, 3]) == pytest.approx((1 + 1 / 3) * WRONG)
    # Over errors alone that mistake is the most frequent one: cs = 2.
    loss, _ = PredictionSensitiveLoss(epsilon2=2).loss(
        empty(), Outputs(logits_for([0, 0, 0, 1, 1])), batch_of([0, 0, 0, 0, 1])
    )
    assert float(loss[0, 3]) == pytest.approx(2 * WRONG)


def test_equal_cells_cost_epsilon1() -> None:
    # Both classes of two are mistaken once: max M = min M = 1 off the diagonal, the fraction is 0.
    loss, _ = PredictionSensitiveLoss(epsilon1=1.25, epsilon2=3).loss(
        empty(2), Outputs(logits_for([1, 0], 2)), batch_of([0, 1])
    )
    wrong = math.log(math.exp(2) + 1)
    assert loss.tolist() == [[pytest.approx(1.25 * wrong)] * 2]


def test_a_single_class_has_no_mistakes() -> None:
    loss, _ = PredictionSensitiveLoss(epsilon2=2).loss(empty(1), Outputs(logits_for([0, 0], 1)), batch_of([0, 0]))
    assert loss.tolist() == [[0.0, 0.0]]


def test_epsilons_of_one_are_cross_entropy_bit_for_bit() -> None:
    logits = torch.randn(1, 40, 5, generator=torch.Generator().manual_seed(0))
    batch = batch_of(list(range(5)) * 8)
    ours, _ = PredictionSensitiveLoss(epsilon1=1, epsilon2=1).loss(empty(5), Outputs(logits), batch)
    plain, _ = CrossEntropy().loss({}, Outputs(logits), batch)
    assert torch.equal(ours, plain)


def test_no_gradient_flows_through_the_cost() -> None:
    # The gradient of cs · CE is cs · (softmax − one-hot): cs is a constant.
    logits = logits_for([1]).requires_grad_()
    loss, _ = PredictionSensitiveLoss(epsilon2=2).loss(empty(), Outputs(logits), batch_of([0]))
    loss.sum().backward()  # type: ignore[no-untyped-call]
    softmax = torch.softmax(logits.detach(), -1)
    assert logits.grad is not None
    torch.testing.assert_close(logits.grad, 2 * (softmax - torch.tensor([1.0, 0.0, 0.0])))


def test_padding_is_not_counted() -> None:
    batch = Batch(torch.zeros(1, 2, 1), torch.tensor([[0, 0]]), torch.tensor([[True, False]]))
    _, carry = PredictionSensitiveLoss(epsilon2=2).loss(empty(), Outputs(logits_for([1, 1])), batch)
    assert carry["mistakes"].sum() == 1


def test_clients_do_not_mix() -> None:
    y = torch.tensor([[0, 0], [1, 1]])
    batch = Batch(torch.zeros(2, 2, 1), y, torch.ones_like(y, dtype=torch.bool))
    logits = torch.cat([logits_for([1, 1]), logits_for([1, 0])])
    _, carry = PredictionSensitiveLoss(epsilon2=2).loss({"mistakes": torch.zeros(2, 3, 3)}, Outputs(logits), batch)
    assert carry["mistakes"].tolist() == [
        [[0, 2, 0], [0, 0, 0], [0, 0, 0]],
        [[0, 0, 0], [1, 1, 0], [0, 0, 0]],
    ]


def a_task(predictions: list[int], labels: list[int]) -> Task:
    return Task(
        start=Model({}, {}),
        received={},
        state={},
        class_counts=torch.ones(1, 3, dtype=torch.int64),
        mean_samples=3.0,
        lr=0.1,
        epochs=1,
        network=lambda params, buffers, x: Outputs(logits_for(predictions)),
        examples=lambda: iter([batch_of(labels)]),
    )


def test_evaluation_source_counts_once_and_stays() -> None:
    objective = PredictionSensitiveLoss(epsilon2=2, source="evaluation", tau=0)
    carry = objective.begin(a_task([1, 1, 2], [0, 0, 1]), {})
    assert carry["mistakes"].tolist() == [[[0, 2, 0], [0, 0, 1], [0, 0, 0]]]
    # 0→1 is the most frequent mistake: 2; 2→0 was never made: 1. Training batches change nothing.
    loss, after = objective.loss(carry, Outputs(logits_for([1, 0])), batch_of([0, 2]))
    assert loss.tolist() == [[pytest.approx(2 * WRONG), pytest.approx(WRONG)]]
    assert torch.equal(after["mistakes"], carry["mistakes"])


def test_memory_carries_a_share_to_the_next_round() -> None:
    objective = PredictionSensitiveLoss(epsilon2=2, memory=0.5)
    first = objective.begin(a_task([], []), {"mistakes": objective.initial_state(3)["mistakes"][None]})
    _, carry = objective.loss(first, Outputs(logits_for([1, 1])), batch_of([0, 0]))
    again = objective.begin(a_task([], []), objective.end(carry))
    assert again["mistakes"][0, 0, 1] == 1.0  # half of 2
    assert PredictionSensitiveLoss().end(carry) == {}


def calibrated(counts: list[list[int]], **options: float) -> tuple[PredictionSensitiveLoss, dict[str, Tensor]]:
    """Return the loss without costs, and its carry for clients with these numbers of samples per class."""
    objective = PredictionSensitiveLoss(epsilon1=1, epsilon2=1, **options)
    return objective, objective.begin(replace(a_task([], []), class_counts=torch.tensor(counts)), {})


def test_logits_are_shifted_by_the_clients_class_shares() -> None:
    # Shares 3/4, 1/4, 0 and s = 0.25: a = log 1, log 0.5, log 0.25. A right prediction is shifted everywhere:
    # logits (2, 0, 0) + a have e² + 0.5 + 0.25 in the denominator.
    objective, carry = calibrated([[3, 1, 0]], tau=1.0, smoothing=0.25)
    loss, after = objective.loss(carry, Outputs(logits_for([0])), batch_of([0]))
    assert float(loss) == pytest.approx(math.log(math.exp(2) + 0.75) - 2)
    assert torch.equal(after["shift"], carry["shift"])


def test_a_class_that_is_wrongly_predicted_is_not_shifted() -> None:
    objective, carry = calibrated([[3, 1, 0]], tau=1.0, smoothing=0.25)
    # Class 2, which the client lacks, predicted for class 0: a′ = (log 1, log 0.5, 0), so 1 + 0.5 + e² over e⁰ · 1.
    # Class 0 predicted for class 1: a′ = (0, log 0.5, log 0.25), so e² + 0.5 + 0.25 over e⁰ · 0.5.
    loss, _ = objective.loss(carry, Outputs(logits_for([2, 0])), batch_of([0, 1]))
    expected = [math.log(math.exp(2) + 1.5), math.log(math.exp(2) + 0.75) - math.log(0.5)]
    assert loss.tolist() == [[pytest.approx(value) for value in expected]]


def test_missing_classes_are_pushed_down_only_by_samples_mistaken_for_them() -> None:
    # Two classes held, a third missing with s = 0.01: the gradient at its logit is its share of the shifted softmax.
    objective, carry = calibrated([[1, 1, 0]], tau=1.0, smoothing=0.01)
    logits = logits_for([1, 2]).requires_grad_()
    loss, _ = objective.loss(carry, Outputs(logits), batch_of([0, 0]))
    loss.sum().backward()  # type: ignore[no-untyped-call]
    assert logits.grad is not None
    # First sample, mistaken for class 1: (0.51, e², 0.01); second, for the missing class: (0.51, 0.51, e²).
    assert float(logits.grad[0, 0, 2]) == pytest.approx(0.01 / (math.exp(2) + 0.52))
    assert float(logits.grad[0, 1, 2]) == pytest.approx(math.exp(2) / (math.exp(2) + 1.02))


def test_tau_scales_the_shift_and_zero_takes_it_away() -> None:
    _, carry = calibrated([[3, 1, 0], [0, 0, 5]], tau=0.5, smoothing=0.25)
    expected = [[1.0, 0.5, 0.25], [0.25, 0.25, 1.25]]  # a client of one class has a finite shift, too
    torch.testing.assert_close(carry["shift"], 0.5 * torch.tensor(expected, dtype=torch.float64).log())
    assert "shift" not in calibrated([[3, 1, 0]], tau=0.0)[1]


def test_costs_and_mistakes_come_from_the_raw_logits() -> None:
    # Raw logits predict class 2, which the client lacks; shifted by log 0.01 they would predict class 0.
    objective = PredictionSensitiveLoss(epsilon2=2)
    carry = objective.begin(replace(a_task([], []), class_counts=torch.tensor([[1, 1, 0]])), {})
    loss, after = objective.loss(carry, Outputs(logits_for([2])), batch_of([0]))
    assert after["mistakes"][0, 0, 2] == 1
    assert float(loss) == pytest.approx(2 * (math.log(math.exp(2) + 1.02) - math.log(0.51)))


def test_the_received_model_is_distilled_on_missing_classes() -> None:
    # As in FedVLS: the client has classes 0 and 1. Received over classes 2 and 3: (¼, ¾), ours: (½, ½).
    plain = PredictionSensitiveLoss(epsilon2=1, tau=0)
    objective = DistilledSensitiveLoss(epsilon2=1, tau=0, distillation=2)
    counts, batch = torch.tensor([[3, 1, 0, 0]]), batch_of([0])
    received = torch.tensor([[[0, 0, 0, math.log(3)]]], dtype=torch.float64)
    outputs = Outputs(logits_for([0], 4), received=received)
    distance = 0.25 * math.log(0.5) + 0.75 * math.log(1.5)
    carry = objective.begin(make_task(1, class_counts=counts), {})
    added = objective.loss(carry, outputs, batch)[0] - plain.loss(carry, outputs, batch)[0]
    assert float(added) == pytest.approx(2 * distance)
    # A client that has all classes has nothing to distil.
    carry = objective.begin(make_task(1, class_counts=counts + 1), {})
    assert torch.equal(objective.loss(carry, outputs, batch)[0], plain.loss(carry, outputs, batch)[0])


def test_the_received_model_is_distilled_on_the_other_classes() -> None:
    # The same term as FedNTD's, which is worked out by hand in test_fedntd.py.
    torch.manual_seed(1)
    logits, received = torch.randn(2, 1, 3, 4).double()
    batch, outputs = batch_of([0, 3, 1]), Outputs(logits, received=received)
    objective = DistilledSensitiveLoss(epsilon2=1, tau=0, distillation=0.5, distilled="others", temperature=3)
    expected = NotTrueDistillation(beta=0.5, tau=3.0).loss({}, outputs, batch)[0]
    carry = objective.begin(make_task(1, class_counts=torch.tensor([[3, 1, 0, 0]])), {})
    torch.testing.assert_close(objective.loss(carry, outputs, batch)[0], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "options", [{"tau": -1}, {"smoothing": 0}, {"epsilon1": -1}, {"memory": 1.5}, {"epsilon1": 3, "epsilon2": 2}]
)
def test_bad_values_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(UsageError):
        PredictionSensitiveLoss(**options)
