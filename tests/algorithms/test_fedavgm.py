"""FedAvgM by hand, plain and Nesterov, and the special case β = 0."""

from __future__ import annotations

from fedsat.algorithms import FedAvg, FedAvgM
from tests.support.byhand import Bowl, Bowls, after_rounds, same

# With η = 0.5 every step halves the distance to b: two steps cover ¾ of it, one step ½.
CLIENTS = [Bowl(4, K=2, n=1), Bowl(-4, K=1, n=3)]


def test_plain_momentum_by_hand() -> None:
    # Round 1 from Θ = 0: A moves ¾·4 = 3, B ½·(−4) = −2: Δ = ¼·3 − ¾·2 = −0.75 = v, Θ = −0.75.
    bowls = Bowls(FedAvgM(momentum=0.5, nesterov=False), CLIENTS, lr=0.5)
    bowls.run_round(0, 1)
    assert (bowls.theta, bowls.memory("momentum")) == (-0.75, -0.75)
    # Round 2: A moves ¾·4.75 = 3.5625, B ½·(−3.25) = −1.625: Δ = 0.890625 − 1.21875 = −0.328125;
    # v = 0.5·(−0.75) − 0.328125 = −0.703125, Θ = −1.453125.
    bowls.run_round(0, 1)
    assert (bowls.theta, bowls.memory("momentum")) == (-1.453125, -0.703125)


def test_nesterov_by_hand() -> None:
    # Round 1: Δ = v = −0.75, Θ = Δ + 0.5 v = −1.125.
    bowls = Bowls(FedAvgM(momentum=0.5, nesterov=True), CLIENTS, lr=0.5)
    bowls.run_round(0, 1)
    assert (bowls.theta, bowls.memory("momentum")) == (-1.125, -0.75)
    # Round 2: A moves ¾·5.125 = 3.84375, B ½·(−2.875) = −1.4375: Δ = 0.9609375 − 1.078125 = −0.1171875;
    # v = −0.375 + Δ = −0.4921875; Θ = −1.125 + Δ + 0.5 v = −1.48828125.
    bowls.run_round(0, 1)
    assert (bowls.theta, bowls.memory("momentum")) == (-1.48828125, -0.4921875)


def test_the_global_rate_scales_the_step_and_not_the_momentum() -> None:
    bowls = Bowls(FedAvgM(momentum=0.5, nesterov=False, server_lr=2), CLIENTS, lr=0.5)
    bowls.run_round(0, 1)
    assert (bowls.theta, bowls.memory("momentum")) == (-1.5, -0.75)


def test_no_momentum_is_fedavg_bit_for_bit() -> None:
    for nesterov in (False, True):
        assert same(after_rounds(FedAvgM(momentum=0, nesterov=nesterov)), after_rounds(FedAvg()))
        assert not same(after_rounds(FedAvgM(momentum=0.5, nesterov=nesterov)), after_rounds(FedAvg()))
