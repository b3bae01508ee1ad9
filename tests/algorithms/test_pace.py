"""FedSat's longer steps by hand: steps that are short compared with the way so far."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import fedsat
from fedsat.algorithms import FedSat, Model, Server
from fedsat.algorithms.pace import departure, lengthening
from tests.support.byhand import after_rounds, make_updates, one, same, scalar

HALF = torch.tensor([0.5, 0.5], dtype=torch.float64)


def test_a_short_step_is_lengthened_to_its_share_of_the_way() -> None:
    # From 1, the model went to 9 and came back to 5: r = 8. Round 4: at least 8/(8·√4) = 0.5.
    memory = departure(Model(scalar(1.0), {}))
    factors = []
    for position, update in ((1.0, 0.0), (9.0, 8.0), (5.0, -4.0), (5.0, 0.2)):
        factor, memory = lengthening(memory, Model(scalar(position), {}), scalar(update), most=3)
        factors.append(factor)
    assert factors == [1, 1, 1, pytest.approx(2.5)]
    assert {name: float(value) for name, value in memory["way"].items()} == {"rounds": 4, "farthest": 8}
    # Round 5: at least 8/(8·√5) = 0.447, but at most three times 0.1; a model that does not move is not lengthened.
    for update, expected in ((0.1, 3.0), (0.4, 1 / (5**0.5 * 0.4)), (-2.0, 1.0), (0.0, 1.0)):
        assert lengthening(memory, Model(scalar(5.0), {}), scalar(update), 3)[0] == pytest.approx(expected)


def test_the_model_goes_farther_but_its_direction_has_the_same_units() -> None:
    # After 3 rounds, 16 away: in round 4, the step is at least 16/16 = 1. The aggregate is 0.5, so the factor is 2.
    # Θ' = 17 + 2·2·0.5 = 19 with η_g = 2. v = −0.5/(η K̄) = −0.5/(0.1·2) = −2.5, as without the option.
    method, near = FedSat(lengthen=3, server_lr=2), Model(scalar(17.0), {})
    memory = method.initial_memory(Model(scalar(1.0), {}))
    memory["way"] = {"rounds": torch.tensor(3.0).double(), "farthest": torch.tensor(0.0).double()}
    updates = make_updates(one(17.5, 17.5), [2, 2], 0.1)
    after = method.aggregate(Server(near, memory), updates, HALF)
    assert float(after.model.params["w"]) == pytest.approx(19.0)
    assert float(after.memory["direction"]["w"]) == pytest.approx(-2.5)
    assert float(after.memory["way"]["farthest"]) == 16
    plain = FedSat(server_lr=2)
    expected = plain.aggregate(Server(near, plain.initial_memory(near)), updates, HALF)
    assert float(expected.model.params["w"]) == pytest.approx(18.0)
    assert float(expected.memory["direction"]["w"]) == pytest.approx(-2.5)


def test_clients_receive_the_direction_only() -> None:
    model = Model(scalar(1.0), {})
    for method, sent in ((FedSat(lengthen=3), {"direction", "signal"}), (FedSat(lengthen=3, correction=False), set())):
        memory = method.initial_memory(model)
        assert memory.keys() == sent | {"departure", "way"}
        assert method.broadcast(Server(model, memory)).keys() == sent


def test_long_steps_stay_as_they_are_bit_for_bit() -> None:
    assert same(after_rounds(FedSat(lengthen=3)), after_rounds(FedSat()))


def test_resuming_continues_on_the_same_way(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "dataset": "mnist-mini", "model": "mlp", "clients": 20, "per_round": 4, "workers": 2, "epochs": 1,
        "lr": 0.001, "lengthen": 3.0, "device": "cpu", "checkpoint_every": 1, "progress": False,
    }  # fmt: skip
    whole = fedsat.run(**settings, rounds=8, out=tmp_path / "whole")
    fedsat.run(**settings, rounds=5, out=tmp_path / "parts")
    parts = fedsat.resume(tmp_path / "parts", rounds=8, progress=False)
    assert float(parts.training.server.memory["way"]["rounds"]) == 8
    assert same(parts.model, whole.model)
