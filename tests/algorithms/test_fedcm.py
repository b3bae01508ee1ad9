"""FedCM worked out by hand, and the special case that equals FedAvg."""

from __future__ import annotations

import pytest

from fedsat.algorithms import FedAvg, FedCM, Uniform
from tests.support.byhand import Bowl, Bowls, after_rounds, same


def test_two_rounds_by_hand() -> None:
    # η = 0.5, α = ½. Round 1, Θ = Δ = 0: steps −½·½ (θ − b).
    # A (b = 4, two steps): θ = 1, then 1.75. B (b = −4, one step): θ = −1. Θ = 0.375.
    bowls = Bowls(FedCM(alpha=0.5), [Bowl(4, K=2, n=1), Bowl(-4, K=1, n=3)], lr=0.5)
    bowls.run_round(0, 1)
    assert bowls.theta == 0.375
    # Mean directions: −1.75/(½·2) = −1.75 and 1/(½·1) = 2: Δ = 0.125.
    assert bowls.memory("direction") == 0.125
    # Round 2, B alone: ½·4.375 + ½·0.125 = 2.25, θ = 0.375 − 1.125. Δ is the direction of that step.
    bowls.run_round(1)
    assert bowls.theta == -0.75
    assert bowls.memory("direction") == 2.25


def test_delta_is_in_units_of_a_gradient_whatever_the_global_learning_rate() -> None:
    bowls = Bowls(FedCM(alpha=1, server_lr=0.5), [Bowl(4, K=1)], lr=0.1)
    bowls.run_round(0)
    assert bowls.theta == pytest.approx(0.2)
    assert bowls.memory("direction") == pytest.approx(-4)


def test_alpha_one_is_fedavg_bit_for_bit() -> None:
    assert same(after_rounds(FedCM(alpha=1)), after_rounds(FedAvg(weighting=Uniform())))
    assert not same(after_rounds(FedCM(alpha=0.5)), after_rounds(FedAvg(weighting=Uniform())))
