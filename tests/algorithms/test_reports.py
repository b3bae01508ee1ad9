"""Statistics of workers' reports when some may lie, by hand, and FedSat's filter that uses them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from fedsat.algorithms import PrioritizedClassWeights
from fedsat.algorithms.aggregator import DampedMean
from fedsat.algorithms.reports import believable, median_rates, recall_on_own_classes, summed, weighted_median
from fedsat.metrics import ClassCounts
from tests.support.byhand import make_updates, one


def doubles(rows: Any) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def reports(predicted: Any, correct: Any, labels: Any) -> ClassCounts:
    """Counts [K, w, m]; a client's first worker is itself."""
    return ClassCounts(*(torch.tensor(rows) for rows in (predicted, correct, labels)))


def test_weighted_median() -> None:
    # Sorted 1, 5, 9 with weights 2, 3, 4: half is 4.5, reached at 5.
    assert float(weighted_median(doubles([9, 1, 5]), doubles([4, 2, 3]), dim=0)) == 5
    assert float(weighted_median(doubles([9, 1, 5]), doubles([7, 2, 3]), dim=0)) == 9
    assert float(weighted_median(doubles([9, 1]), doubles([0, 0]), dim=0)) == 0
    assert weighted_median(torch.zeros(2, 0), torch.zeros(2, 0), dim=1).tolist() == [0, 0]


def test_median_rates_by_hand() -> None:
    # Class 0: workers hold 4, 2, 10 and get 3, 2, 0 right: recalls 0.75, 1, 0; median 0.75 of 3 · 4 samples = 9 right.
    # Class 1: 4, 2, 0 held, 2, 1, 0 right: recall 0.5, 0.5 (undefined for the third); of 2 · 2 samples 2 right.
    # False positives of 0, per sample of others: (5 − 3)/4, (3 − 2)/2, none to judge by → 0.5 · 4 = 2 of class 1's 4.
    # Of class 1: (3 − 2)/4, (1 − 1)/2, (10 − 0)/10 → the middle of 0, 0.25, 1 is 0.25, of class 0's 12: 3.
    # The client's own report, in the first column, does not count.
    given = reports(
        [[[90, 0], [5, 3], [3, 1], [0, 10]]], [[[90, 0], [3, 2], [2, 1], [0, 0]]], [[[90, 0], [4, 4], [2, 2], [10, 0]]]
    )
    predicted, correct, labels = median_rates(given)
    assert labels.tolist() == [[12, 4]]
    assert correct.tolist() == [[9, 2]]
    assert predicted.tolist() == [[11, 5]]


def test_equal_workers_have_the_rates_of_their_sum() -> None:
    for workers in (1, 4):
        given = reports([[[5, 3]] * workers], [[[3, 2]] * workers], [[[4, 4]] * workers])
        others = max(1, workers - 1)
        for left, right in zip(summed(given), median_rates(given), strict=True):
            assert (left / workers).tolist() == (right / others).tolist()


def test_recall_on_own_classes_by_hand() -> None:
    # The client holds three of class 0 and one of class 1: mix 3/4, 1/4, 0.
    #   worker A holds 0 and 1, recalls 1 and 0:     finds 0.75, has seen the whole mix
    #   worker B holds 1 and 2, recalls 0.5 and 0.9: finds 0.5, has seen 1/4
    #   worker C holds 2 alone: has seen nothing
    #   worker D holds 0 alone, recall 0:            finds 0, has seen 3/4
    # In order 0 (3/4), 0.5 (1/4), 0.75 (1): half of 2 is reached at 0.5. The client's own report is not used.
    correct = [[[0, 0, 0], [8, 0, 0], [0, 1, 9], [0, 0, 5], [0, 0, 0]]]
    labels = [[[3, 1, 0], [8, 4, 0], [0, 2, 10], [0, 0, 5], [6, 0, 0]]]
    given = reports(labels, correct, labels)
    assert recall_on_own_classes(given).tolist() == [0.5]


def test_recall_is_undefined_without_other_workers() -> None:
    # Alone, or with a worker that holds none of the client's classes, or one that did not report.
    assert recall_on_own_classes(reports([[[2, 0]]], [[[2, 0]]], [[[2, 0]]])).isnan().all()
    given = reports([[[2, 0], [0, 3], [0, 0]]], [[[2, 0], [0, 3], [0, 0]]], [[[2, 0], [0, 3], [0, 0]]])
    assert recall_on_own_classes(given).isnan().all()


def test_a_client_without_a_report_is_evaluated_on_all_classes() -> None:
    given = reports([[[0, 0], [4, 4]]], [[[0, 0], [4, 2]]], [[[0, 0], [4, 4]]])
    assert recall_on_own_classes(given).tolist() == [0.75]


# Four clients that hold one of two classes; three other workers hold ten samples of either.
# Clients 0 to 2 recognise only their class (0.9, 1, 0.9); client 3 recognises neither (0.1 of its class).
MIX = [[5, 0], [0, 5], [5, 0], [0, 5]]
RIGHT = [[9, 0], [0, 10], [9, 0], [0, 1]]
LABELS = [[mix, *[[10, 10]] * 3] for mix in MIX]
CORRECT = [[mix, *[right] * 3] for mix, right in zip(MIX, RIGHT, strict=True)]


def weights(correct: Any, labels: Any, **options: Any) -> list[float]:
    given = reports(labels, correct, labels)
    updates = make_updates(one(1, 1, 1, 1), [1] * 4, 0.1)
    client_weights = PrioritizedClassWeights(**options).weigh(updates, given)
    assert float(client_weights.weights.sum()) == pytest.approx(1)
    return [float(weight) for weight in client_weights.weights]


def test_the_papers_threshold_lets_a_bad_model_pass_and_the_filter_does_not() -> None:
    assert min(weights(CORRECT, LABELS)) > 0
    # Recalls on their own classes 0.9, 1, 0.9, 0.1; the upper quartile of 0.1, 0.9, 0.9, 1 is 0.925.
    assert [weight > 0 for weight in weights(CORRECT, LABELS, min_recall=0.9)] == [True, True, True, False]
    assert min(weights(CORRECT, LABELS, min_recall=0.1)) > 0
    assert [weight > 0 for weight in weights(CORRECT, LABELS, min_recall=0.98)] == [False, True, False, False]


def test_bad_models_are_left_out_even_where_they_are_the_majority() -> None:
    # Only client 1 knows its class; of the recalls 0.1, 1, 0.1, 0.1 the upper quartile is 0.325.
    correct = [[mix, *[right] * 3] for mix, right in zip(MIX, [[1, 0], [0, 10], [1, 0], [0, 1]], strict=True)]
    assert weights(correct, LABELS, min_recall=0.9) == [0, 1, 0, 0]


def test_one_liar_of_three_moves_the_sum_but_not_the_medians() -> None:
    # The last worker claims a thousand times the samples, and reports client 3 as perfect and the others as wrong.
    labels = [[*workers[:3], [10_000, 10_000]] for workers in LABELS]
    correct = [[*workers[:3], [10_000, 10_000] if client == 3 else [0, 0]] for client, workers in enumerate(CORRECT)]
    lied = weights(correct, labels, min_effective=0)
    assert lied[3] > 0.9
    robust = weights(correct, labels, min_effective=0, statistics="median", min_recall=0.9)
    assert robust == pytest.approx(weights(CORRECT, LABELS, min_effective=0, statistics="median", min_recall=0.9))
    assert robust[3] == 0


def test_long_and_short_updates_weigh_less() -> None:
    # Lengths 1, 2, 2, 2, 30, 0.1: the median of those that moved is 2, ratios 0.5, 1, 1, 1, 15, 0.05.
    # Beyond 1.5: (1.5/15)² = 1/100; below 0.2: (0.05/0.2)² = 1/16.
    damped = DampedMean(longest=1.5, shortest=0.2)
    sixth = torch.full((6,), 1 / 6, dtype=torch.float64)
    kept = damped.select(one(1, -2, 2, 2, 30, 0.1), sixth)
    total = 4 + 1 / 100 + 1 / 16
    assert kept.tolist() == pytest.approx([1 / total] * 4 + [0.01 / total, 0.0625 / total])


def test_zero_updates_get_no_weight_unless_all_are_zero() -> None:
    third = torch.full((3,), 1 / 3, dtype=torch.float64)
    assert DampedMean().select(one(0, 0, 5), third).tolist() == [0, 0, 1]
    assert DampedMean(shortest=0).select(one(0, 0, 5), third).tolist() == pytest.approx([1 / 3] * 3)
    assert DampedMean().select(one(0, 0, 0), third).tolist() == third.tolist()


def test_a_worker_that_deviates_from_all_others_is_ignored() -> None:
    # Two clients of class 0. Workers 5, 6, 7, 8, 9 find 1, 1, 0, 0.6, 1 of the first, 0.9, 1, 0, 0.8, 0.9 of the
    # second: medians 1 and 0.9. Worker 7 is off by (1 + 0.9)/2, worker 8 by (0.4 + 0.1)/2 = 0.25, others by less.
    labels = [[[5, 0], *[[10, 0]] * 5]] * 2
    correct = [[[5, 0], [10, 0], [10, 0], [0, 0], [6, 0], [10, 0]], [[5, 0], [9, 0], [0, 0], [10, 0], [8, 0], [9, 0]]]
    nodes = torch.tensor([[1, 5, 6, 7, 8, 9], [2, 5, 7, 6, 8, 9]])
    given = replace(reports(labels, correct, labels), workers=nodes)
    left = believable(given)
    assert left.labels[..., 0].tolist() == [[5, 10, 10, 0, 10, 10], [5, 10, 0, 10, 10, 10]]
    assert left.workers is nodes
    assert believable(reports(labels, correct, labels)).labels.tolist() == labels  # workers are unknown
