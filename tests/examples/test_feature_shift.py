"""The example of a dataset with feature shift."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

import fedsat
from fedsat import data

FOLDER = Path(__file__).parents[2] / "examples" / "extend"


@pytest.fixture
def feature_shift(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(FOLDER)
    monkeypatch.syspath_prepend(str(FOLDER))
    return import_module("feature_shift")


def test_a_quarter_turn_by_hand(feature_shift) -> None:
    image = np.array([[[1, 2], [3, 4]]], np.uint8)
    turned = feature_shift.shift(image, 90, 0.0, np.random.default_rng(0))
    assert turned.tolist() == [[[2, 4], [1, 3]]]


def test_clients_differ_in_features_not_in_labels(feature_shift) -> None:
    made = feature_shift.make(clients=5, most_degrees=0, most_noise=60)
    plain = data.load("mnist-mini")
    assert made.clients == 5
    assert (made.train.labels == plain.train.labels).all()
    corner = made.train.images[:, 0, :4, :4].astype(float)  # black in the original
    strength = [corner[made.owners == client].mean() for client in range(5)]
    assert max(strength) > 2 * min(strength)
    mixes = data.Federation.build(made, "natural", 5, 0).summary()
    assert mixes.skew < 0.06
    assert (feature_shift.make(clients=5, most_degrees=0, most_noise=60).train.images == made.train.images).all()


def test_it_trains_by_its_name(feature_shift) -> None:
    run = fedsat.run(
        dataset="feature_shift:load",
        partition="natural",
        clients=20,
        per_round=3,
        rounds=1,
        epochs=1,
        algorithm="fedavg",
    )
    assert run.summary["accuracy"] > 0.1
