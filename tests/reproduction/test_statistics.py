"""Tests and intervals against calculations by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from reproduction.statistics import (
    bootstrap_interval,
    critical_difference,
    friedman,
    ranks,
    spearman,
    student_half_width,
)


def test_rank_correlation() -> None:
    assert spearman([(1, 10), (2, 20), (3, 30)]) == pytest.approx(1)
    # Ranks 1 2 3 4 against 2 1 3 4: 1 - 6·2 / (4·15) = 0.8.
    assert spearman([(1, 2), (2, 1), (3, 3), (4, 4)]) == pytest.approx(0.8)
    assert spearman([(1, 2), (2, 1)]) is None
    assert spearman([(1, 1), (1, 2), (1, 3)]) is None


def test_equal_values_share_a_rank() -> None:
    assert ranks(np.array([[30.0, 10.0, 20.0], [5.0, 7.0, 5.0]])).tolist() == [[3, 1, 2], [1.5, 3, 1.5]]


def test_friedman() -> None:
    # Four settings, three methods, rank sums 4, 9, 11: χ² = 12/(4·3·4) · (16 + 81 + 121) - 3·4·4 = 6.5.
    # With two degrees of freedom, p = exp(-χ²/2).
    ranked = np.array([[1, 2, 3], [1, 2, 3], [1, 3, 2], [1, 2, 3]], dtype=np.float64)
    assert friedman(ranked) == pytest.approx(math.exp(-6.5 / 2))
    # Two settings with a tie, rank sums 2.5, 3.5, 6: χ² = 2 · (1.5² + 0.5² + 2²) / (27.5 - 24) = 13/3.5.
    assert friedman(np.array([[1.5, 1.5, 3.0], [1.0, 2.0, 3.0]])) == pytest.approx(math.exp(-13 / 3.5 / 2))
    assert friedman(np.full((3, 3), 2.0)) == 1.0


def test_critical_difference() -> None:
    # The example of Demšar (2006): four classifiers on 14 datasets differ by 2.569 · √(4·5/(6·14)) = 1.25.
    assert critical_difference(14, 4) == pytest.approx(1.25, abs=0.005)


def test_bootstrap_draws_whole_groups() -> None:
    # Two groups with means 0 and 3: 1 of 4 samples draws the first twice, and 1 of 4 the second twice.
    assert bootstrap_interval([[0.0, 0.0], [3.0, 3.0]]) == (0.0, 3.0)
    low, high = bootstrap_interval([[value] for value in np.random.default_rng(1).normal(5, 2, 400)])
    assert (low, high) == pytest.approx((5 - 1.96 * 0.1, 5 + 1.96 * 0.1), abs=0.25)
    assert high - low == pytest.approx(2 * 1.96 * 0.1, rel=0.1)
    assert bootstrap_interval([[1.0], [2.0], [4.0]]) == bootstrap_interval([[1.0], [2.0], [4.0]])


def test_student_interval() -> None:
    # Deviation 1, three values.
    assert student_half_width([1.0, 2.0, 3.0]) == pytest.approx(4.303 / math.sqrt(3))
    # Deviation √2, two values.
    assert student_half_width([1.0, 3.0]) == pytest.approx(12.706)
    assert student_half_width([1.0]) is None
