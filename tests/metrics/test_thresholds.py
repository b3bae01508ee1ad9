"""Thresholds for a wanted sensitivity, calculated by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fedsat.errors import UsageError
from fedsat.metrics import histograms
from fedsat.metrics.thresholds import Thresholds, decide

NAMES = ("well", "ill")


def counted(probabilities: Any, labels: list[int]) -> Any:
    logits = torch.tensor(probabilities, dtype=torch.float64).log()
    found = histograms.empty(1, logits.shape[1], logits.device)
    everyone = torch.ones(len(labels), dtype=torch.bool)
    histograms.add_scores(found, logits, torch.tensor(labels), torch.zeros(len(labels), dtype=torch.int64), everyone)
    return found[0].numpy()


@pytest.fixture
def thresholds() -> Thresholds:
    """Of ten ill people with the scores 0.05, 0.15, …, 0.95, and twenty who are well."""
    ill = [place / 10 + 0.05 for place in range(10)]
    scores = np.array([*ill, *[0.5] * 20])
    return Thresholds.of(counted(np.stack([1 - scores, scores], 1), [1] * 10 + [0] * 20))


@pytest.mark.parametrize(("sensitivity", "score"), [(0.9, 0.15), (1.0, 0.05), (0.1, 0.95), (0.85, 0.15), (0.05, 0.95)])
def test_by_hand(thresholds: Thresholds, sensitivity: float, score: float) -> None:
    well, ill = thresholds.at({"ill": sensitivity}, NAMES)
    assert np.isnan(well)
    assert 0 <= score - ill < 0.004  # nine of ten reach 0.15; a bin is at most 0.004 wide
    assert thresholds.at(sensitivity, NAMES)[1] == ill  # the class with fewer samples


def test_every_class_of_three() -> None:
    found = Thresholds.of(counted(np.full((3, 3), 1 / 3), [0, 1, 1]))
    assert found.samples == (1, 2, 0)
    with pytest.raises(UsageError, match="no threshold for the class 'c': no validation sample is of this class"):
        found.at(0.9, ("a", "b", "c"))
    at = found.at({"a": 0.9, "b": 0.5}, ("a", "b", "c"))
    assert at[:2] == pytest.approx([1 / 3, 1 / 3], abs=0.004)
    with pytest.raises(UsageError, match="unknown class 'd'"):
        found.at({"d": 0.9}, ("a", "b", "c"))
    for share in (0, 1.01, float("nan")):
        with pytest.raises(UsageError, match="it must be a share"):
            found.at({"a": share}, ("a", "b", "c"))


def test_json(thresholds: Thresholds) -> None:
    assert Thresholds.from_json(thresholds.to_json()) == thresholds
    with pytest.raises(ValueError, match="expected 100 for each class"):
        Thresholds.from_json('{"samples": [1], "levels": [[0.5]]}')


def test_the_threshold_of_one_class_decides_about_it() -> None:
    probabilities = np.array([[0.9, 0.1, 0.0], [0.7, 0.25, 0.05], [0.3, 0.25, 0.45]])
    classes, reached = decide(probabilities, np.array([np.nan, 0.2, np.nan]))
    assert classes.tolist() == [0, 1, 1]
    assert reached.tolist() == [False, True, True]
    classes, reached = decide(np.array([[0.3, 0.7]]), np.array([np.nan, 0.8]))
    assert (classes.tolist(), reached.tolist()) == ([0], [False])  # although the other is more probable


def test_several_thresholds() -> None:
    at = np.array([0.8, 0.2, 0.1])
    classes, reached = decide(np.array([[0.8, 0.1, 0.1], [0.3, 0.5, 0.2], [0.75, 0.18, 0.07]]), at)
    assert classes.tolist() == [0, 1, 0]  # ratios 1, 0.5, 1; 0.4, 2.5, 2; none reaches 1: the most probable
    assert reached.tolist() == [True, True, False]


def test_no_threshold_is_the_most_probable_class() -> None:
    classes, reached = decide(np.array([[0.4, 0.6], [0.6, 0.4]]), np.full(2, np.nan))
    assert classes.tolist() == [1, 0]
    assert not reached.any()


def test_samples_at_the_threshold_reach_it() -> None:
    """The wanted share of the validation samples is found, with scores from 1e-8 to almost 1."""
    rng = np.random.default_rng(0)
    odds = rng.normal(0, 6, 500)
    scores = 1 / (1 + np.exp(-odds))
    found = Thresholds.of(counted(np.stack([1 / (1 + np.exp(odds)), scores], 1), [1] * 500))
    for sensitivity in (0.01, 0.33, 0.5, 0.9, 0.99, 1.0):
        share = (scores >= found.at({"ill": sensitivity}, NAMES)[1]).mean()
        assert sensitivity <= share <= sensitivity + 0.02


def test_thresholds_of_a_confident_model_differ() -> None:
    """Log-odds of 22 to 35 are probabilities that differ only in their last digits."""
    odds = np.linspace(22, 34, 500)
    found = Thresholds.of(counted(np.stack([1 / (1 + np.exp(odds)), 1 / (1 + np.exp(-odds))], 1), [1] * 500))
    low, middle, high = (found.at({"ill": share}, NAMES)[1] for share in (0.9, 0.5, 0.1))
    assert low < middle < high < 1
