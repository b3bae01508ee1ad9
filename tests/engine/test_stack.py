"""Runs that train together get the same numbers as each run alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from fedsat.algorithms import SGD, algorithms
from fedsat.engine import StackedEngine
from fedsat.engine.groups import alike
from fedsat.engine.stack import Stack
from fedsat.errors import UsageError
from fedsat.rounds import FederationState, lr_schedules, run_round, start
from fedsat.rounds.local import Request
from fedsat.rounds.sampling import sample_clients
from tests.engine.test_graphs import CountedSteps
from tests.support.federations import SAMPLING, furthest, image_dataset, make_engine, stacked, tiny_dataset

QUANTITY = {"name": "quantity", "beta": 0.5}


def run_alone(engines: Sequence[StackedEngine], rounds: int = 2) -> list[FederationState]:
    """Train each run by itself."""
    trainings = [start(engine) for engine in engines]
    for engine, training in zip(engines, trainings, strict=True):
        for _ in range(rounds):
            run_round(engine, training, replace(SAMPLING, seed=engine.training.seed))
    return trainings


def run_together(engines: Sequence[StackedEngine], rounds: int = 2) -> list[FederationState]:
    """Train all runs in one stack."""
    stack, trainings = Stack(engines), [start(engine) for engine in engines]
    for number in range(1, rounds + 1):
        requests = [
            Request(
                training.server,
                sample_clients(engine.training.seed, number, engine.clients, SAMPLING.per_round),
                training.states,
                number,
            )
            for engine, training in zip(engines, trainings, strict=True)
        ]
        stack.train_ahead(requests)
        for engine, training in zip(engines, trainings, strict=True):
            run_round(engine, training, replace(SAMPLING, seed=engine.training.seed))
            assert engine.ahead is None
    return trainings


def assert_same(alone: Sequence[FederationState], together: Sequence[FederationState], within: float = 1e-9) -> None:
    """Each run has the same model, memory and client states."""
    for one, other in zip(alone, together, strict=True):
        assert furthest(one.server.model.params, other.server.model.params) <= within
        assert furthest(one.server.model.buffers, other.server.model.buffers) <= within
        assert all(furthest(tree, other.server.memory[name]) <= within for name, tree in one.server.memory.items())
        assert one.states.keys() == other.states.keys()
        for client, state in one.states.items():
            assert all(furthest(tree, other.states[client][name]) <= within for name, tree in state.items())


def engines_of(settings: Sequence[dict[str, Any]], **common: Any) -> list[StackedEngine]:
    """Return one engine for each of the settings."""
    given = [{"partition": QUANTITY, "clients": 9, "lanes": 5, **common, **own} for own in settings]
    return [make_engine(algorithms.build(own.pop("algorithm")), engine=stacked, **own) for own in given]


PAIRS = [(algorithm, "mlp") for algorithm in algorithms]
PAIRS += [("fedsat", {"name": "resnet8", "width": 4}), ("fedavg", {"name": "resnet8", "width": 4, "norm": "group"})]
PAIRS += [("moon", "lenet5")]


@pytest.mark.parametrize(("algorithm", "model"), PAIRS, ids=str)
def test_every_method_over_seeds(algorithm: str, model: Any) -> None:
    settings: list[dict[str, Any]] = [{"seed": seed} for seed in (3, 4, 5)]
    common: dict[str, Any] = {"algorithm": algorithm, "dataset": image_dataset(), "model": model, "epochs": 1}
    assert_same(*(run(engines_of(settings, **common)) for run in (run_alone, run_together)))


SETTINGS: dict[str, list[dict[str, Any]]] = {
    "rates": [{"lr": lr} for lr in (0.1, 0.03, 0.2)],
    "partitions": [{"partition": part} for part in ("iid", QUANTITY, {"name": "quantity", "beta": 2.0})],
    "epochs": [{"epochs": 1}, {"epochs": 3, "seed": 8}],
    "objectives": [
        {"algorithm": {"name": "fedavg", "objective": {"name": "psl", "epsilon2": value}}} for value in (1, 2)
    ],
    "server rates": [{"algorithm": {"name": "fedavg", "server_lr": value}} for value in (0.5, 1.0)],
    "SCAFFOLD": [{"algorithm": {"name": "scaffold", "server_lr": value}, "seed": 7} for value in (0.5, 1.0)],
    "FedSat": [{"algorithm": {"name": "fedsat", "gamma": value}, "seed": seed} for value, seed in ((0.5, 1), (0.9, 2))],
    "FedProx": [{"algorithm": {"name": "fedprox", "mu": value}} for value in (0.01, 1.0)],
    "FedDyn": [{"algorithm": {"name": "feddyn", "alpha": value}, "lr": value} for value in (0.01, 0.1)],
    "FedSAM": [{"algorithm": {"name": "fedsam", "rho": value}, "seed": seed} for value, seed in ((0.05, 1), (0.1, 2))],
    "MOON": [{"algorithm": {"name": "moon", "mu": value}} for value in (0.1, 5.0)],
    "optimizers": [
        {"local": {"optimizer": SGD(momentum=value, weight_decay=decay)}} for value, decay in ((0.5, 0.0), (0.9, 0.1))
    ],
    "decay or none": [{"local": {"optimizer": SGD(weight_decay=value)}} for value in (0.0, 0.1)],
    "schedules": [
        {"local": {"rounds": 4, "lr_schedule": lr_schedules.build(schedule)}} for schedule in ("constant", "cosine")
    ],
    "samples": [{"dataset": tiny_dataset(samples)} for samples in (60, 90)],
    "methods": [{"algorithm": name} for name in ("fedavg", "fedprox", "fedavgm")],
}


@pytest.mark.parametrize("name", list(SETTINGS))
def test_settings(name: str) -> None:
    common: dict[str, Any] = {"algorithm": "fedavg"}
    assert_same(*(run(engines_of(SETTINGS[name], **common)) for run in (run_alone, run_together)))


def test_augmentation_and_steps() -> None:
    settings: list[dict[str, Any]] = [{"seed": seed} for seed in (1, 2)]
    common = {"algorithm": "fedsat", "dataset": image_dataset(), "augment": True, "local": {"steps": 3}}
    assert_same(*(run(engines_of(settings, **common)) for run in (run_alone, run_together)))


@pytest.mark.parametrize("algorithm", ["fedavg", "fedprox", "fedsam", "scaffold", "fedsat"])
def test_graphs(algorithm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    schedules = [lr_schedules.build({"name": "exponential", "decay": decay}) for decay in (0.5, 0.9)]
    settings: list[dict[str, Any]] = [
        {"seed": seed, "local": {"rounds": 4, "lr_schedule": schedule}} for seed, schedule in enumerate(schedules)
    ]
    monkeypatch.setattr(Stack, "_new_graphs", lambda self: CountedSteps(self.engines, self.network))
    assert_same(*(run(engines_of(settings, algorithm=algorithm), 4) for run in (run_alone, run_together)))


def test_few_lanes_belong_to_the_runs_in_turns() -> None:
    engines = engines_of([{"seed": seed} for seed in (1, 2, 3)], algorithm="fedsat", lanes=5)
    assert Stack(engines).lanes == 1
    assert Stack(engines[:2]).lanes == 2
    assert engines[0].train_examples is engines[1].train_examples is engines[2].train_examples


def test_which_runs_need_separate_calls() -> None:
    def are_alike(*settings: dict[str, Any]) -> bool:
        return alike(engines_of([{"algorithm": "fedavg", **own} for own in settings]))

    assert are_alike({"seed": 1}, {"seed": 2, "algorithm": "fedavgm"})
    assert are_alike({"algorithm": "scaffold", "seed": 1}, {"algorithm": "scaffold", "seed": 2})
    assert are_alike({"algorithm": "fedsat"}, {"algorithm": {"name": "fedsat", "gamma": 0.5}})
    assert not are_alike({"algorithm": "fedsat"}, {"algorithm": {"name": "fedsat", "objective": "cross-entropy"}})
    assert are_alike({"algorithm": "fedprox"})
    assert not are_alike({"lr": 0.1}, {"lr": 0.2})
    assert not are_alike({"algorithm": "fedprox"}, {"algorithm": "fedprox"})
    assert not are_alike({"algorithm": "fedntd"}, {"algorithm": "fedntd"})  # its objective reads the received model
    assert not are_alike({}, {"algorithm": {"name": "fedavg", "objective": "psl"}})


def test_runs_with_other_trees_are_refused() -> None:
    engines = engines_of([{"algorithm": "fedavg"}, {"algorithm": "scaffold"}])
    with pytest.raises(UsageError, match="different state"):
        run_together(engines)
