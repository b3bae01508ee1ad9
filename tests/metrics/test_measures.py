"""Measures by hand, and their forms."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedsat.metrics import CHOICES, MEASURES, METRICS, Counts, Evaluation, measures
from fedsat.metrics.histograms import BINS, add_scores, empty, middles

# 4 of 5, 1 of 2 and 2 of 3 are right; a fourth class has no samples, and one sample is taken for it.
COUNTS = Counts(np.array([[4, 1, 0, 0], [1, 1, 0, 0], [0, 0, 2, 1], [0, 0, 0, 0]]))
NAN = np.nan


def scored(probabilities: list[float], labels: list[int]) -> Counts:
    """The counts of a problem with two classes, given the probability of class 1."""
    p = torch.tensor(probabilities, dtype=torch.float64)
    logits = torch.stack([(1 - p).log(), p.log()], 1)
    y, counted = torch.tensor(labels), torch.ones(len(p), dtype=torch.bool)
    found = empty(1, 2, torch.device("cpu"))
    add_scores(found, logits, y, torch.zeros_like(y), counted)
    confusion = np.zeros((2, 2), dtype=np.int64)
    np.add.at(confusion, (np.array(labels), (np.array(probabilities) > 0.5).astype(int)), 1)
    return Counts(confusion, found[0].numpy())


# By score of class 1: 0.9 (1), 0.8 (0), 0.6 (1), 0.3 (0), 0.2 (0).
SCORED = scored([0.9, 0.8, 0.6, 0.3, 0.2], [1, 0, 1, 0, 0])


def test_measures_of_counts() -> None:
    assert measures.accuracy(COUNTS) == pytest.approx(7 / 10)
    assert measures.recall(COUNTS) == pytest.approx([4 / 5, 1 / 2, 2 / 3, NAN], nan_ok=True)
    assert measures.precision(COUNTS) == pytest.approx([4 / 5, 1 / 2, 1, NAN], nan_ok=True)
    assert measures.specificity(COUNTS) == pytest.approx([4 / 5, 7 / 8, 1, NAN], nan_ok=True)
    assert measures.f1(COUNTS) == pytest.approx([4 / 5, 1 / 2, 4 / 5, NAN], nan_ok=True)
    # T = 5, 2, 3, 0 and Z = 5, 2, 2, 1 of s = 10: (10·7 − 35) / √((100 − 38)(100 − 34))
    assert measures.mcc(COUNTS) == pytest.approx((70 - 35) / np.sqrt(62 * 66))


def test_a_class_that_is_never_predicted() -> None:
    one_sided = Counts(np.array([[9, 0], [1, 0]]))
    assert measures.precision(one_sided).tolist() == [0.9, 0]
    assert measures.f1(one_sided).tolist() == pytest.approx([18 / 19, 0])
    assert measures.mcc(one_sided) == 0
    assert np.isnan(measures.mcc(Counts(np.array([[3, 1], [0, 0]]))))


def test_measures_of_scores() -> None:
    # Of the six pairs, only (0.6, 0.8) is in the wrong order.
    assert measures.auroc(SCORED) == pytest.approx([5 / 6, 5 / 6])
    # Class 1: precision 1 and 2/3 at its two samples. Class 0: 0.2, 0.3 and 0.8, after which 0.6 is passed.
    assert measures.average_precision(SCORED) == pytest.approx([(1 + 1 + 3 / 4) / 3, (1 + 2 / 3) / 2])
    # Without a false alarm, one of two is found, and of class 0 two of three.
    assert measures.sensitivity_at(0.95)(SCORED) == pytest.approx([2 / 3, 1 / 2])
    assert measures.sensitivity_at(0.5)(SCORED) == pytest.approx([1, 1])
    assert measures.sensitivity_at(2 / 3)(SCORED)[1] == 1
    squares = (0.1**2 + 0.8**2 + 0.4**2 + 0.3**2 + 0.2**2) / 5
    assert measures.brier(SCORED) == pytest.approx([squares, squares], abs=2e-3)
    # All five scores are in different bins of width 1/15, so each sample is off by |p − y|.
    off = (0.1 + 0.8 + 0.4 + 0.3 + 0.2) / 5
    assert measures.calibration_error(SCORED) == pytest.approx([off, off], abs=2e-3)
    # By confidence: 0.9 and 0.6 and 0.7 are right, 0.8 is wrong twice over one bin (one right).
    assert measures.ece(SCORED) == pytest.approx((0.1 + abs(1.6 - 1) + 0.4 + 0.3) / 5, abs=2e-3)


def test_ties_and_missing_classes() -> None:
    tied = scored([0.3, 0.3, 0.3, 0.7], [1, 0, 0, 1])
    assert measures.auroc(tied)[1] == pytest.approx((0.5 + 0.5 + 1 + 1) / 4)
    alone = scored([0.3, 0.7], [0, 0])
    assert np.isnan(measures.auroc(alone)).all()
    assert np.isnan(measures.sensitivity_at(0.9)(alone)).all()
    assert np.isnan(measures.brier(alone)[1])
    assert not np.isnan(measures.brier(alone)[0])


def test_forms_by_hand() -> None:
    evaluation = Evaluation(
        COUNTS.confusion, 0.5, np.array([0.5, 0.9]), class_mixes=np.array([[1, 1, 0, 0], [0, 0, 2, 7]])
    )

    def value(name: str) -> object:
        return pytest.approx(CHOICES[name](evaluation), nan_ok=True)

    assert value("f1") == (0.8 + 0.5 + 0.8) / 3
    assert value("weighted_f1") == (5 * 0.8 + 2 * 0.5 + 3 * 0.8) / 10
    assert value("class_f1") == [0.8, 0.5, 0.8, NAN]
    assert value("worst_class_f1") == 0.5
    assert value("class_gap_f1") == 0.8 - 0.5
    assert value("class_gap_recall") == 0.8 - 0.5
    assert value("client_gap_accuracy") == 0.9 - 0.5
    # Client 0 has one sample of each of the first two classes. Expected: [0.8, 0.2; 0.5, 0.5].
    first = (2 * 0.8 / (1 + 1.3) + 2 * 0.5 / (1 + 0.7)) / 2
    # Client 1 has two of the third class: 4/3 right, 2/3 taken for the fourth, whose test recall is unknown.
    second = 2 * (4 / 3) / (2 + 4 / 3)
    assert value("client_f1") == [first, second]
    assert value("worst_client_f1") == min(first, second)
    assert value("client_gap_f1") == abs(first - second)


def test_worst_is_the_largest_error() -> None:
    evaluation = Evaluation(SCORED.confusion, 0.5, histograms=SCORED.histograms)
    assert CHOICES["worst_class_calibration_error"](evaluation) == max(CHOICES["class_calibration_error"](evaluation))
    assert not CHOICES["brier"].higher_is_better
    assert not CHOICES["class_gap_f1"].higher_is_better


def test_any_leading_axes() -> None:
    """One call on stacked counts is the same as one call for each."""
    others = [COUNTS.confusion[:2, :2], COUNTS.confusion[1:3, 1:3], SCORED.confusion]
    stacked = Counts(np.stack(others), np.stack([SCORED.histograms] * 3))
    for each in MEASURES:
        single = [each.compute(Counts(confusion, SCORED.histograms)) for confusion in others]
        assert np.allclose(each.compute(stacked), single, equal_nan=True), each.name
        totals = [each.overall(Counts(confusion, SCORED.histograms)) for confusion in others]
        assert np.allclose(each.overall(stacked), totals, equal_nan=True), each.name


def test_names_are_unique_and_described() -> None:
    assert not METRICS.keys() & CHOICES.keys()
    assert {each.name for each in CHOICES.values()} == set(CHOICES)
    assert "worst_class_recall" in METRICS
    assert {"recall", "class_gap_recall", "client_auroc", "ece"} <= {*METRICS, *CHOICES}
    assert len(middles()) == BINS
