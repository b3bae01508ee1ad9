"""Confusion counts and the numbers computed from them, by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedsat.metrics import ClassCounts, Evaluation, accuracy_by_client, confusion_counts, rounds_to_target

# 10 samples of class 0 (8 right), 20 of class 1 (5 right), none of class 2 (though predicted 3 times).
EVALUATION = Evaluation(np.array([[8, 2, 0], [12, 5, 3], [0, 0, 0]]), 0.7)


def test_rates_of_a_confusion_matrix() -> None:
    assert EVALUATION.accuracy == pytest.approx(13 / 30)
    assert EVALUATION.recall[:2].tolist() == [0.8, 0.25]
    assert np.isnan(EVALUATION.recall[2])
    assert EVALUATION.balanced_accuracy == pytest.approx(0.525)
    assert EVALUATION.worst_class == 1


def test_expected_client_accuracy() -> None:
    # Mixes (3, 1), (0, 4) and one with a class that cannot be tested, (1, 1, 8): it is left out of the mix.
    accuracy = EVALUATION.expected_client_accuracy(np.array([[3, 1, 0], [0, 4, 0], [1, 1, 8]]))
    assert accuracy.tolist() == pytest.approx([0.75 * 0.8 + 0.25 * 0.25, 0.25, 0.525])


def test_accuracy_by_client() -> None:
    accuracy = accuracy_by_client(np.array([[[3, 1], [2, 4]], [[0, 0], [0, 0]]]))
    assert accuracy[0] == pytest.approx(7 / 10)
    assert np.isnan(accuracy[1])


def test_counting() -> None:
    counts = confusion_counts(torch.tensor([[0, 1, 1, -1]]), torch.tensor([[0, 0, 1, 1]]), 2)
    assert counts.tolist() == [[[1, 0], [1, 1]]]
    views = ClassCounts.from_confusion(counts)
    assert views.predicted.tolist() == [[2, 1]]
    assert views.correct.tolist() == [[1, 1]]
    assert views.labels.tolist() == [[1, 2]]


def test_rounds_to_target_must_hold() -> None:
    rounds = [1, 2, 3, 4, 5, 6]
    # Running means of three from round 3 on: 0.4, 0.4, 0.7, 0.8: the lucky first round does not count.
    accuracy = [0.9, 0.1, 0.2, 0.9, 1.0, 0.5]
    assert rounds_to_target(rounds, accuracy, 0.7) == 5
    assert rounds_to_target(rounds, accuracy, 0.95) is None
    assert rounds_to_target([1, 2], [1.0, 1.0], 0.5) is None  # too few evaluations
