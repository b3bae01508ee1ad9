"""FedProx by hand, and the special case μ = 0."""

from __future__ import annotations

import pytest

from fedsat.algorithms import FedAvg, FedProx
from tests.support.byhand import Bowl, Bowls, after_rounds, make_task, one, same, values


def test_two_rounds_by_hand() -> None:
    # η = 0.5, μ = 1: a step takes θ to θ − 0.5 (θ − b + θ − Θ).
    # Round 1, Θ = 0. A (b = 4, two steps): gradient −4, θ = 2; −2 + 1·2 = 0, θ stays 2.
    # B (b = −2, one step): gradient 2, θ = −1. Θ = ¼·2 + ¾·(−1) = −0.25.
    bowls = Bowls(FedProx(mu=1), [Bowl(4, K=2, n=1), Bowl(-2, K=1, n=3)], lr=0.5)
    bowls.run_round(0, 1)
    assert bowls.theta == -0.25
    # Round 2. A: −4.25, θ = 1.875; −2.125 + 2.125 = 0. B: 1.75, θ = −1.125. Θ = ¼·1.875 − ¾·1.125 = −0.375.
    bowls.run_round(0, 1)
    assert bowls.theta == -0.375


def test_the_term_is_the_gradient_of_the_squared_norm() -> None:
    # θ = (4, −2), Θ = 1, μ = 0.5, no other gradient, η = 0.1: θ − 0.1·0.5·(3, −3) = (3.85, −1.85).
    params, _ = FedProx(mu=0.5).step(make_task(2), {}, one(4, -2), one(0, 0))
    assert values(params) == pytest.approx([3.85, -1.85])


def test_mu_zero_is_fedavg_bit_for_bit() -> None:
    assert same(after_rounds(FedProx(mu=0)), after_rounds(FedAvg()))
    assert not same(after_rounds(FedProx(mu=0.1)), after_rounds(FedAvg()))
