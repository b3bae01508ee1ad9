"""The ledger against dp-accounting's own numbers, and the budget."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dp_accounting as dp
import numpy as np
import pytest

import fedsat
from fedsat.errors import UsageError
from fedsat.rounds.ledger import Ledger, gaussian_epsilon
from fedsat.rounds.privacy import Central, Local
from fedsat.rounds.sampling import sample_clients, sample_workers


def accounted(*events: tuple[dp.DpEvent, int], delta: float) -> float:
    accountant = dp.rdp.RdpAccountant(neighboring_relation=dp.NeighboringRelation.REPLACE_ONE)
    for event, count in events:
        accountant.compose(dp.SelfComposedDpEvent(event, count))
    return float(accountant.get_epsilon(delta))


def test_gaussian_releases_by_hand() -> None:
    """Renyi differential privacy of one release is α/2z², which adds up; ε by Canonne et al. 2020, proposition 12."""
    orders = dp.rdp.RdpAccountant()._orders
    delta, rdp = 1e-5, [3 * a / (2 * 2.0**2) + 4 * a / (2 * 5.0**2) for a in orders]
    each = [r + np.log1p(-1 / a) - np.log(delta * a) / (a - 1) for a, r in zip(orders, rdp, strict=True) if a > 1.01]
    assert gaussian_epsilon(((2.0, 3), (5.0, 4)), delta) == pytest.approx(min(each), rel=1e-9)


def test_central_privacy_is_amplified_by_sampling_without_replacement() -> None:
    ledger = Ledger(Central(dp_noise=1.3), clients=100, per_round=15, workers=0, seed=0, delta=1e-3, amplified=True)
    event = dp.SampledWithoutReplacementDpEvent(100, 15, dp.GaussianDpEvent(1.3))
    assert ledger.epsilon(20) == accounted((event, 20), delta=1e-3)
    assert ledger.epsilon(20) < accounted((dp.GaussianDpEvent(1.3), 20), delta=1e-3)


@pytest.mark.parametrize(
    ("settings", "amplified"),
    [
        ({"algorithm": "fedavg"}, False),  # another client has another number of samples, so all shares change
        ({"algorithm": {"name": "fedavg", "weighting": "uniform"}}, True),
        ({"algorithm": {"name": "fedsat", "weighting": "uniform"}}, False),  # v_t shows the mean number of steps
        ({"algorithm": {"name": "fedsat", "weighting": "uniform"}, "steps": 5}, True),
        ({"algorithm": {"name": "fedsat", "weighting": "uniform"}, "steps": 5, "stragglers": 0.5}, False),
    ],
)
def test_only_means_that_hide_who_was_sampled_are_amplified(settings: dict[str, Any], amplified: bool) -> None:
    config = fedsat.configure(**settings, privacy="central")
    simulated, real = config.ledger(on_nodes=False), config.ledger(on_nodes=True)
    assert simulated is not None
    assert real is not None
    assert simulated.amplified == amplified
    assert not real.amplified  # nodes know the seed
    assert (simulated.epsilon(3) < real.epsilon(3)) == amplified


def test_a_round_with_all_clients_is_not_amplified() -> None:
    ledger = Ledger(Central(dp_noise=2.0), clients=10, per_round=10, workers=0, seed=0, delta=1e-5)
    assert ledger.epsilon(7) == accounted((dp.GaussianDpEvent(2.0), 7), delta=1e-5)


def test_with_little_noise_the_bound_without_sampling_holds_too() -> None:
    ledger = Ledger(Central(dp_noise=0.3), 10, per_round=8, workers=0, seed=0, delta=1e-5, amplified=True)
    assert ledger.epsilon(2) <= accounted((dp.GaussianDpEvent(0.3), 2), delta=1e-5)


def test_local_privacy_is_that_of_the_client_that_was_asked_most() -> None:
    privacy = Local(dp_noise=4.0, dp_counts=20.0)
    ledger = Ledger(privacy, clients=12, per_round=3, workers=4, seed=7, delta=1e-5)
    updates, reports = np.zeros(12, dtype=int), np.zeros(12, dtype=int)
    for number in range(1, 6):
        sampled = sample_clients(7, number, 12, 3)
        for client in sampled:
            updates[client] += 1
        for worker in sample_workers(7, number, 12, sampled, 4).ravel():
            reports[worker] += 1
    each = [
        accounted((dp.GaussianDpEvent(4.0), a), (dp.GaussianDpEvent(20.0), b + 1), delta=1e-5)  # + 1: the histogram
        for a, b in zip(updates.tolist(), reports.tolist(), strict=True)
        if a
    ]
    assert ledger.epsilon(5) == pytest.approx(max(each), rel=1e-12)


def test_repeated_requests_are_charged() -> None:
    ledger = Ledger(Local(dp_noise=4.0), clients=4, per_round=4, workers=0, seed=0, delta=1e-5)
    update = dp.GaussianDpEvent(4.0)
    assert ledger.epsilon(5) == accounted((update, 5), delta=1e-5)
    assert ledger.epsilon(5, repeated=2) == accounted((update, 7), delta=1e-5)


def test_every_round_costs_more_and_no_round_costs_nothing() -> None:
    ledger = Ledger(Central(), clients=50, per_round=5, workers=0, seed=0, delta=1e-5)
    spent = [ledger.epsilon(rounds) for rounds in range(5)]
    assert spent[0] == 0
    assert spent == sorted(set(spent))
    assert ledger.affordable(spent[3], 4) == 3
    assert ledger.affordable(spent[3] - 1e-6, 4) == 2


def test_a_run_stops_before_its_budget_is_overspent(tmp_path: Path) -> None:
    settings = {"algorithm": "fedavg", "epochs": 1, "privacy": {"name": "central", "dp_noise": 2.0}, "rounds": 6}
    free = fedsat.run(**settings)
    spent = [record.epsilon for record in free.records]
    assert free.summary["epsilon"] == spent[-1]
    run = fedsat.run(**settings, budget=f"{(spent[2] + spent[3]) / 2},1e-5", out=tmp_path / "run")
    assert [record.epsilon for record in run.records] == spent[:3]
    assert "privacy budget allows no further round" in str(run.stopped)
    assert all(record.train_loss is None for record in run.records)


def test_a_budget_below_the_first_round_is_refused() -> None:
    with pytest.raises(UsageError, match="the first round costs"):
        fedsat.run(algorithm="fedavg", epochs=1, privacy="central", budget="0.001,1e-5")
