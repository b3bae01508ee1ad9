"""FedDyn by hand, its stationary point, and the two models it reports."""

from __future__ import annotations

import pytest
import torch

import fedsat
from fedsat.algorithms import FedDyn, Model, Server
from tests.support.byhand import Bowl, Bowls, after_rounds, one, same, scalar, values


def test_two_rounds_by_hand_with_a_client_missing_in_each() -> None:
    # α = 3, η = ¼: a step takes θ to θ − ¼ (θ − b + 3 (θ − Θ + λ)) = (b + 3Θ − 3λ)/4, where further steps stay.
    # Round 1, Θ = 0. A (b = 4): θ = 1 = λ. B (b = −8): θ = −2 = λ. λ̄ = (1 − 2 + 0)/3 = −1/3, over all three clients.
    # Mean of the active −½, Θ = −½ − 1/3 = −5/6. Sizes do not count.
    bowls = Bowls(FedDyn(alpha=3), [Bowl(4, K=2, n=9), Bowl(-8, K=1, n=1), Bowl(10, K=3, n=5)], lr=0.25)
    bowls.run_round(0, 1)
    assert (bowls.kept(0, "dual"), bowls.kept(1, "dual")) == (1, -2)
    assert bowls.memory("mean_dual") == pytest.approx(-1 / 3)
    assert bowls.theta == pytest.approx(-5 / 6)
    assert reported(bowls) == pytest.approx(-1 / 2)
    # Round 2. B: θ = (−8 − 2.5 + 6)/4 = −9/8, moved by −7/24: λ = −55/24.
    # C (b = 10): θ = (10 − 2.5)/4 = 15/8, λ = 65/24.
    # λ̄ = −1/3 + (−7 + 65)/24/3 = 17/36; mean of the active 3/8; Θ = 3/8 + 17/36 = 61/72.
    bowls.run_round(1, 2)
    assert bowls.kept(0, "dual") == 1
    assert bowls.kept(1, "dual") == pytest.approx(-55 / 24)
    assert bowls.kept(2, "dual") == pytest.approx(65 / 24)
    assert bowls.memory("mean_dual") == pytest.approx(17 / 36)
    assert bowls.theta == pytest.approx(61 / 72)
    assert reported(bowls) == pytest.approx(3 / 8)


def reported(bowls: Bowls) -> float:
    return values(bowls.method.reported_models(bowls.server)["active-mean"].params)[0]


def test_the_stationary_point_stays_bit_for_bit() -> None:
    # Θ = 1, the mean of b = 4 and −2; λ_k = −∇L_k(Θ)/α = (b − 1)/0.5 = ±6: (1 − 4) + 0.5·(0 + 6) = 0.
    bowls = Bowls(FedDyn(alpha=0.5), [Bowl(4, K=3), Bowl(-2, K=1)], lr=0.3, begin=1.0)
    bowls.states = {0: {"dual": one(6)}, 1: {"dual": one(-6)}}
    bowls.run_round(0, 1)
    assert (bowls.theta, bowls.memory("mean_dual")) == (1, 0)
    assert (bowls.kept(0, "dual"), bowls.kept(1, "dual")) == (6, -6)


def test_it_gets_there_from_anywhere_with_one_client_missing_each_time() -> None:
    # b = 9, −4, 1 have the mean 2; λ_k = (b − 2)/0.5.
    bowls = Bowls(FedDyn(alpha=0.5), [Bowl(9, K=3), Bowl(-4, K=1), Bowl(1, K=2)], lr=0.4)
    for number in range(300):
        bowls.run_round(*[[0, 1], [1, 2], [0, 2]][number % 3])
    assert bowls.theta == pytest.approx(2)
    assert reported(bowls) == pytest.approx(2)
    assert [bowls.kept(client, "dual") for client in range(3)] == pytest.approx([14, -12, -2])


def test_alpha_scaled_by_size_by_hand() -> None:
    # Sizes 9, 1 and 5: n/N = 5, so α_k = 0.9·5/9 = ½ for A and 0.9·5/1 = 4.5 for B. η = ¼, Θ = 0, λ = 0 at first.
    # A (b = 4): θ = ¼·4 = 1, then 1 − ¼ ((1 − 4) + ½·1) = 13/8 = λ. B (b = −8), one step: θ = −2 = λ.
    # λ̄ = (13/8 − 2)/3 = −1/8; mean of the active −3/16; Θ = −5/16.
    bowls = Bowls(FedDyn(alpha=0.9, scale_by_size=True), [Bowl(4, K=2, n=9), Bowl(-8, K=1, n=1), Bowl(0, 1, 5)], 0.25)
    bowls.run_round(0, 1)
    assert [bowls.kept(client, "dual") for client in (0, 1)] == pytest.approx([13 / 8, -2])
    assert bowls.theta == pytest.approx(-5 / 16)
    # Round 2, B: θ = −5/16 − ¼ ((−5/16 + 8) + 4.5·(−2)) = −5/16 + 21/64, so λ = −2 + 21/64.
    bowls.run_round(1)
    assert bowls.kept(1, "dual") == pytest.approx(-2 + 21 / 64)


def test_with_alpha_scaled_by_size_every_sample_counts_once() -> None:
    # Sizes 3, 1 and 2 with b = 9, −4 and 1: the mean of b over the samples is (27 − 4 + 2)/6 = 25/6.
    # λ_k = (b − Θ)/α_k with α_k = 0.5·2/n_k, so n_k (b − Θ).
    bowls = Bowls(FedDyn(alpha=0.5, scale_by_size=True), [Bowl(9, 3, 3), Bowl(-4, 1, 1), Bowl(1, 2, 2)], lr=0.4)
    for number in range(300):
        bowls.run_round(*[[0, 1], [1, 2], [0, 2]][number % 3])
    assert bowls.theta == pytest.approx(25 / 6)
    wanted = [n * (b - 25 / 6) for b, n in ((9, 3), (-4, 1), (1, 2))]
    assert [bowls.kept(client, "dual") for client in range(3)] == pytest.approx(wanted)


def test_clients_of_equal_size_have_the_same_alpha() -> None:
    left, right = (FedDyn(alpha=0.5, scale_by_size=scaled) for scaled in (True, False))
    assert same(after_rounds(left, partition="iid"), after_rounds(right, partition="iid"))


def test_a_vanishing_alpha_is_the_uniform_mean_plus_the_mean_dual() -> None:
    # α = 1e−12: local training is FedAvg's. η = ½: A moves ¾·4 = 3, B ½·(−4) = −2; mean ½, λ̄ = (3 − 2)/2 = ½.
    bowls = Bowls(FedDyn(alpha=1e-12), [Bowl(4, K=2, n=9), Bowl(-4, K=1, n=1)], lr=0.5)
    bowls.run_round(0, 1)
    assert bowls.theta == pytest.approx(1)
    assert reported(bowls) == pytest.approx(0.5)


def test_the_mean_of_all_duals_is_kept_and_buffers_are_left_alone() -> None:
    statistics = {"mean": torch.tensor([5.0])}
    server = Server(Model(scalar(1), statistics), {"mean_dual": scalar(0.25)})
    other = FedDyn().reported_models(server)["active-mean"]
    assert values(other.params) == [0.75]
    assert other.buffers is statistics


def test_both_models_are_evaluated_and_recorded() -> None:
    run = fedsat.run(algorithm="feddyn", clients=20, per_round=4, rounds=3, epochs=1, lr=0.05)
    line, server = run.records[-1], run.training.server
    other = run.setup.engine.algorithm.reported_models(server)["active-mean"]
    evaluation = run.setup.engine.test(other)
    entry = line.models["active-mean"]
    assert entry["accuracy"] == evaluation.accuracy
    assert entry["loss"] == pytest.approx(evaluation.loss)
    assert entry["loss"] != line.metrics["loss"]
    assert entry.keys() == line.metrics.keys()
    summary = run.summary["models"]["active-mean"]
    lines = [record.models["active-mean"]["accuracy"] for record in run.records]
    assert summary["accuracy"] == lines[-1]
    assert summary["last_ten"]["accuracy"] == pytest.approx(sum(lines) / 3)
    assert summary["best"] == {"accuracy": max(lines), "round": lines.index(max(lines)) + 1}
