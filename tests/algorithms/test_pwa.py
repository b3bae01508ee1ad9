"""Prioritized-class weights by hand (equations 8 to 21)."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedsat.algorithms import Model, PrioritizedClassWeights, Updates
from fedsat.algorithms.pwa import evened
from fedsat.errors import UsageError
from fedsat.metrics import ClassCounts


def counts(predicted: list[list[int]], correct: list[list[int]], labels: list[list[int]]) -> ClassCounts:
    """Return counts of clients (rows), each with one worker."""
    return ClassCounts(*(torch.tensor(rows).unsqueeze(1) for rows in (predicted, correct, labels)))


def updates(clients: int) -> Updates:
    ones = torch.ones(clients, dtype=torch.int64)
    return Updates(torch.arange(clients), Model({}, {}), {}, ones, ones, 0.1, 1, clients)


def weigh(given: ClassCounts, **options: Any) -> Tensor:
    return PrioritizedClassWeights(**options).weigh(updates(len(given.labels)), given).weights


# Two clients, two classes. Workers hold 10 samples of class 0 and 10 of class 1.
#   client A: 8 of class 0 right, 5 of class 1 right → predicted 8+5 = 13 as 0, 2+5 = 7 as 1
#   client B: 10 right, 2 right                      → predicted 10+8 = 18 as 0, 0+2 = 2 as 1
PREDICTED = [[13, 7], [18, 2]]
CORRECT = [[8, 5], [10, 2]]
LABELS = [[10, 10], [10, 10]]
# FNR as printed = missed/TP: A: 2/8 = 0.25, 5/5 = 1      B: 0, 8/2 = 4
# FPR = (Z−TP)/(ΣT−T):        A: 5/10 = 0.5, 2/10 = 0.2   B: 8/10, 0
# E = 0.3 FNR/max + 0.2 FPR/max:
#   A: 0.3·0.25 + 0.2·1 = 0.275, 0.3·1 + 0.2·0.4 = 0.38   Σ 0.655
#   B: 0 + 0.2·1 = 0.2,          0.3·1 + 0 = 0.3          Σ 0.5
SCORES = [[0.275, 0.38], [0.2, 0.3]]


def test_scores_and_priority_class() -> None:
    client_weights = PrioritizedClassWeights().weigh(updates(2), counts(PREDICTED, CORRECT, LABELS))
    assert client_weights.client_scores is not None
    assert client_weights.class_scores is not None
    assert client_weights.client_scores.tolist() == pytest.approx([0.655, 0.5])
    assert client_weights.class_scores.tolist() == pytest.approx([0.475, 0.68])  # class 1 has priority


def test_soft_priority() -> None:
    # q = (0.475, 0.68)/1.155; P = q·ACC: A: q0·0.8 + q1·0.5, B: q0·1 + q1·0.2
    a = (0.475 * 0.8 + 0.68 * 0.5) / 1.155
    b = (0.475 * 1.0 + 0.68 * 0.2) / 1.155
    assert weigh(counts(PREDICTED, CORRECT, LABELS)).tolist() == pytest.approx([a / (a + b), b / (a + b)])


def test_hard_priority_takes_true_positives_of_the_priority_class() -> None:
    # Class 1 has priority: P = (5, 2).
    assert weigh(counts(PREDICTED, CORRECT, LABELS), priority="hard", min_effective=0).tolist() == pytest.approx(
        [5 / 7, 2 / 7]
    )


def test_product_is_the_papers_formula() -> None:
    # ϑ = ΣACC·ΣTP/ΣE · P/(ΣT−ΣTP): A: 1.3·13/0.655·5/7, B: 1.2·12/0.5·2/8
    a, b = 1.3 * 13 / 0.655 * 5 / 7, 1.2 * 12 / 0.5 * 2 / 8
    got = weigh(counts(PREDICTED, CORRECT, LABELS), priority="hard", weights="product", min_effective=0)
    assert got.tolist() == pytest.approx([a / (a + b), b / (a + b)])


def test_threshold_leaves_out_clients_with_high_scores() -> None:
    # Mean score 0.5775; σ = 1 keeps B (0.5) and drops A (0.655).
    assert weigh(counts(PREDICTED, CORRECT, LABELS), sigma=1).tolist() == [0, 1]
    # σ = 0.5: no client is at or below 0.289, so only the best one stays.
    assert weigh(counts(PREDICTED, CORRECT, LABELS), sigma=0.5).tolist() == [0, 1]


def test_standard_false_negative_rate() -> None:
    # missed/T: A: 0.2, 0.5   B: 0, 0.8 → E_A = 0.3·0.4 + 0.2, 0.3 + 0.2·0.4
    scores = PrioritizedClassWeights(fnr="standard").scores(
        *(torch.tensor(rows).double() for rows in (PREDICTED, CORRECT, LABELS))
    )
    assert scores.tolist() == [pytest.approx([0.32, 0.38]), pytest.approx([0.2, 0.3])]


def test_zero_true_positives_divide_by_one() -> None:
    # Class 1 is never hit: FNR = 10/max(0, 1) = 10, the maximum; class 0: 0. FPR: (20−10)/10 = 1 and 0.
    scores = PrioritizedClassWeights().scores(
        torch.tensor([[20.0, 0.0]]), torch.tensor([[10.0, 0.0]]), torch.tensor([[10.0, 10.0]])
    )
    assert scores.tolist() == [pytest.approx([0.2, 0.3])]


def test_absent_class_and_single_class() -> None:
    # Only class 0 is present: no false positive is possible for it (denominator 0); class 1 has FPR 4/10.
    scores = PrioritizedClassWeights().scores(
        torch.tensor([[6.0, 4.0]]), torch.tensor([[6.0, 0.0]]), torch.tensor([[10.0, 0.0]])
    )
    assert scores.tolist() == [pytest.approx([0.3, 0.2])]


def test_perfect_clients_are_finite_and_equal() -> None:
    perfect = counts([[10, 10]] * 3, [[10, 10]] * 3, [[10, 10]] * 3)
    for options in ({}, {"weights": "product", "priority": "hard", "min_effective": 0.0, "sigma": 1.0}):
        assert weigh(perfect, **options).tolist() == pytest.approx([1 / 3] * 3)


def test_a_perfect_client_beside_another_is_finite() -> None:
    # B is perfect: ΣE floors at α + β = 0.5, ΣT−ΣTP at 1. Priority class 1 (score 0.38 against 0.275).
    given = counts([PREDICTED[0], [10, 10]], [CORRECT[0], [10, 10]], LABELS)
    a, b = 1.3 * 13 / 0.655 * 5 / 7, 2 * 20 / 0.5 * 10 / 1
    got = weigh(given, weights="product", priority="hard", min_effective=0)
    assert got.tolist() == pytest.approx([a / (a + b), b / (a + b)])


def test_one_client_weighs_one() -> None:
    assert weigh(counts([PREDICTED[0]], [CORRECT[0]], [LABELS[0]])).tolist() == [1.0]


def test_clients_without_correct_predictions_have_equal_weights() -> None:
    # Both models predict the other class throughout: no true positive anywhere, P = 0 for both.
    assert weigh(counts([[5, 5]] * 2, [[0, 0]] * 2, [[5, 5]] * 2)).tolist() == [0.5, 0.5]


@pytest.mark.parametrize("clients", [1, 2, 7, 15])
@pytest.mark.parametrize("sigma", [1.0, 2.0])
def test_equal_statistics_give_equal_weights(clients: int, sigma: float) -> None:
    given = counts([[13, 7]] * clients, [[8, 5]] * clients, [[10, 10]] * clients)
    for options in ({}, {"weights": "product", "priority": "hard", "min_effective": 0.0}):
        weights = weigh(given, sigma=sigma, **options)
        assert torch.equal(weights, weights[:1].expand(clients))
        assert float(weights.sum()) == pytest.approx(1)


def test_workers_counts_are_summed() -> None:
    once = counts(PREDICTED, CORRECT, LABELS)
    parts = ClassCounts(
        torch.tensor([[[10, 3], [3, 4]], [[9, 1], [9, 1]]]),
        torch.tensor([[[8, 0], [0, 5]], [[5, 1], [5, 1]]]),
        torch.tensor([[[5, 8], [5, 2]], [[5, 5], [5, 5]]]),
    )
    assert torch.equal(weigh(once), weigh(parts))


def test_floor_on_effective_clients() -> None:
    # Weights (4, 1): 1/Σϑ² = 25/17 ≈ 1.47 of 2. A floor of 0.9 asks for 1.8: with r = 4^τ,
    # (1+r)²/(1+r²) = 1.8 → r² − 2.5 r + 1 = 0 → r = 2, so τ = 1/2.
    assert evened(torch.tensor([4.0, 1.0]).double(), 0.9).tolist() == pytest.approx([2 / 3, 1 / 3])
    assert evened(torch.tensor([4.0, 1.0]).double(), 0.5).tolist() == pytest.approx([0.8, 0.2])
    assert evened(torch.tensor([4.0, 1.0]).double(), 1.0).tolist() == pytest.approx([0.5, 0.5], abs=1e-6)


@settings(max_examples=60, deadline=None)
@given(data=st.data(), clients=st.integers(1, 8), classes=st.integers(1, 6))
def test_weights_are_a_distribution_whatever_the_counts(data: st.DataObject, clients: int, classes: int) -> None:
    confusion = torch.tensor(
        data.draw(
            st.lists(
                st.lists(
                    st.lists(st.integers(0, 9), min_size=classes, max_size=classes), min_size=classes, max_size=classes
                ),
                min_size=clients,
                max_size=clients,
            )
        )
    )
    options = data.draw(
        st.fixed_dictionaries(
            {
                "weights": st.sampled_from(["priority", "product"]),
                "priority": st.sampled_from(["soft", "hard"]),
                "fnr": st.sampled_from(["paper", "standard"]),
                "min_effective": st.sampled_from([0.0, 0.5, 0.9, 1.0]),
                "sigma": st.sampled_from([0.1, 1.0, 2.0]),
            }
        )
    )
    weights = weigh(ClassCounts.from_confusion(confusion.unsqueeze(1)), **options)
    assert bool(torch.isfinite(weights).all())
    assert bool((weights >= 0).all())
    assert math.isclose(float(weights.sum()), 1, rel_tol=1e-9)
    accepted = int((weights > 0).sum())
    assert 1 / float(weights.square().sum()) >= options["min_effective"] * accepted * (1 - 1e-6)


def test_bad_values_are_refused() -> None:
    with pytest.raises(UsageError, match="sigma"):
        PrioritizedClassWeights(sigma=0)
    with pytest.raises(UsageError, match="alpha"):
        PrioritizedClassWeights(alpha=0, beta=0)
