"""FedACG worked out by hand, and the special cases that equal other methods."""

from __future__ import annotations

import pytest

from fedsat.algorithms import FedACG, FedAvg, FedAvgM, FedProx, Uniform
from tests.support.byhand import Bowl, Bowls, after_rounds, same, values


def test_two_rounds_by_hand() -> None:
    # λ = ½, β = 1, η = 0.5. The paper's rule: clients start at Φ = Θ + λ m; m ← λ m + Δ̄; Θ ← Θ + m.
    # Round 1, Φ = 0, b = 4, two steps: θ = 2; −2 + 1·2 = 0, θ = 2. Δ̄ = m = Θ = 2, so Φ = 2 + ½·2 = 3.
    bowls = Bowls(FedACG(momentum=0.5, beta=1), [Bowl(4, K=2)], lr=0.5)
    bowls.run_round(0)
    assert (bowls.theta, bowls.memory("momentum")) == (3, 2)
    reported = bowls.method.reported_models(bowls.server)["without-lookahead"]
    assert values(reported.params) == [2]
    # Round 2 from Φ = 3: −1, θ = 3.5; −0.5 + 0.5 = 0. Δ̄ = 0.5, m = 1 + 0.5 = 1.5, Θ = 2 + 1.5 = 3.5, Φ = 4.25.
    bowls.run_round(0)
    assert (bowls.theta, bowls.memory("momentum")) == (4.25, 1.5)
    reported = bowls.method.reported_models(bowls.server)["without-lookahead"]
    assert values(reported.params) == [3.5]


def test_without_the_proximal_term_it_is_nesterov_momentum_bit_for_bit() -> None:
    plain = FedAvgM(momentum=0.85, nesterov=True, weighting=Uniform())
    assert same(after_rounds(FedACG(beta=0)), after_rounds(plain))
    assert not same(after_rounds(FedACG(beta=1)), after_rounds(plain))


@pytest.mark.parametrize("beta", [0, 0.5])
def test_without_momentum_it_is_fedprox_bit_for_bit(beta: float) -> None:
    assert same(after_rounds(FedACG(momentum=0, beta=beta)), after_rounds(FedProx(mu=beta, weighting=Uniform())))
    assert same(after_rounds(FedACG(momentum=0, beta=0)), after_rounds(FedAvg(weighting=Uniform())))
