"""FedDisco's weights worked out by hand, and that clients send a distance, not their class counts."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from fedsat.algorithms import DiscrepancyAware, FedAvg, FedDisco, Scaffold
from tests.support.byhand import after_rounds, make_updates, one, same
from tests.support.federations import make_engine

COUNTS = torch.tensor([[4, 4], [8, 0], [3, 1]])


def weights(weighting: DiscrepancyAware, sizes: list[int], distance: list[float]) -> list[float]:
    """The weights of clients of these sizes that state these distances."""
    uploads = {"weighting": {"distance": torch.tensor(distance, dtype=torch.float64)}}
    updates = make_updates(one(*[0.0] * len(sizes)), [1] * len(sizes), 0.1, uploads=uploads, sizes=torch.tensor(sizes))
    found: list[float] = weighting.weigh(updates, None).weights.tolist()
    return found


def test_distances_by_hand() -> None:
    # Balanced: 0. One class of two: KL = log 2; Euclidean √(¼ + ¼). Shares ¾, ¼: ¾ log 3/2 + ¼ log ½; √(1/16 + 1/16).
    kl = DiscrepancyAware().statement(COUNTS)["distance"]
    assert kl.tolist() == pytest.approx([0, math.log(2), 0.75 * math.log(1.5) - 0.25 * math.log(2)])
    l2 = DiscrepancyAware(distance="l2").statement(COUNTS)["distance"]
    assert l2.tolist() == pytest.approx([0, math.sqrt(0.5), math.sqrt(0.125)])


def test_weights_by_hand() -> None:
    # n/n_S = ½, ½; d as stated, a = ½, b = 0.1: 0.6 − 0.1 = 0.5 and 0.6 − 0.5 = 0.1: weights 5/6 and 1/6.
    assert weights(DiscrepancyAware(distance="l2"), [3, 3], [0.2, 1.0]) == pytest.approx([5 / 6, 1 / 6])
    # KL as shares of the sum, 0.5 and 1.5 → ¼ and ¾: 0.6 − 0.125 = 0.475 and 0.6 − 0.375 = 0.225.
    assert weights(DiscrepancyAware(), [3, 3], [0.5, 1.5]) == pytest.approx([0.475 / 0.7, 0.225 / 0.7])
    # A negative weight becomes 0: ¼ + 0.1 − ½·0.8 < 0.
    assert weights(DiscrepancyAware(distance="l2"), [3, 1], [0, 0.8]) == [1, 0]


def test_cases_without_a_distance_or_a_positive_weight() -> None:
    assert weights(DiscrepancyAware(), [3, 1], [0, 0]) == pytest.approx([0.85 / 1.2, 0.35 / 1.2])
    assert weights(DiscrepancyAware(a=5, b=0, distance="l2"), [3, 1], [1, 1]) == [0.75, 0.25]
    # A client that states a negative distance gets no more than one that states 0.
    assert weights(DiscrepancyAware(), [1, 1], [-9, 1]) == weights(DiscrepancyAware(), [1, 1], [0, 1])


def test_a_and_b_zero_are_fedavg_bit_for_bit() -> None:
    assert same(after_rounds(FedDisco(weighting=DiscrepancyAware(a=0, b=0))), after_rounds(FedAvg()))
    assert not same(after_rounds(FedDisco(), partition="ls"), after_rounds(FedAvg(), partition="ls"))
    # Every method accepts the weighting.
    weighted = Scaffold(weighting=DiscrepancyAware())
    assert not same(after_rounds(weighted, partition="ls"), after_rounds(Scaffold(), partition="ls"))


def test_clients_send_one_number() -> None:
    engine = make_engine(FedDisco(), partition="ls")
    model = engine.initial_model
    sent = engine.train_from(model, {}, np.arange(5), {}, 1).updates.uploads
    assert list(sent) == ["weighting"]
    expected = DiscrepancyAware().statement(torch.from_numpy(engine.federation.class_counts))["distance"]
    assert sent["weighting"]["distance"].tolist() == expected.tolist()
    assert make_engine(FedAvg()).train_from(model, {}, np.arange(5), {}, 1).updates.uploads == {}
