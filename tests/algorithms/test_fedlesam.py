"""FedLESAM worked out by hand, and its first round, which is FedAvg's."""

from __future__ import annotations

from fedsat.algorithms import FedAvg, FedLESAM, Uniform
from tests.support.byhand import Bowl, Bowls, after_rounds, same


def test_three_rounds_by_hand() -> None:
    # η = 0.5, ρ = 1. Round 1, Θ = 0, no perturbation. A (b = 4): −4, θ = 2. B (b = −2): 2, θ = −1. Θ = 0.5.
    bowls = Bowls(FedLESAM(rho=1), [Bowl(4, K=1), Bowl(-2, K=2)], lr=0.5)
    bowls.run_round(0)
    assert bowls.theta == 2
    assert bowls.kept(0, "received") == 0
    # Round 2, Θ = 2. A received 0 before: ε = −1, gradient (2 − 1) − 4 = −3, θ = 3.5. B is new: ε = 0, gradients 4
    # and 2, θ = 0, then −1. Θ = 1.25.
    bowls.run_round(0, 1)
    assert bowls.theta == 1.25
    # Round 3, Θ = 1.25, B only. It received 2: ε = 1, gradients 3.25 + 1 and 1.125 + 1: θ = −0.875, then −0.9375 …
    bowls.run_round(1)
    first = 1.25 - 0.5 * (1.25 + 2 + 1)
    assert bowls.theta == first - 0.5 * (first + 2 + 1)
    # A did not take part: it still keeps the model of round 2.
    assert (bowls.kept(0, "received"), bowls.kept(1, "received")) == (2, 1.25)


def test_the_first_participation_is_fedavg_bit_for_bit() -> None:
    plain = FedAvg(weighting=Uniform())
    assert same(after_rounds(FedLESAM(), rounds=1), after_rounds(plain, rounds=1))
    assert same(after_rounds(FedLESAM(rho=0), per_round=5), after_rounds(plain, per_round=5))
    assert not same(after_rounds(FedLESAM(), rounds=2, per_round=5), after_rounds(plain, rounds=2, per_round=5))
