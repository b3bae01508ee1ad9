"""Graphed steps on a CPU: graphs are replaced by functions that repeat the step within the same fixed memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fedsat.algorithms import SGD, algorithms
from fedsat.engine.graphs import GraphedSteps
from fedsat.rounds import lr_schedules
from tests.support.federations import furthest, make_engine, run_rounds, stacked


class Replayed:
    """Stands for a CUDA graph."""

    def __init__(self, step: Any) -> None:
        self.replay = step


class CountedSteps(GraphedSteps):
    """Graphed steps that count their graphs."""

    captured = 0

    def _record(self, width: int, padded: bool) -> Any:
        assert self._lanes is not None
        self.captured += 1
        lanes = self._lanes.take(slice(0, width))
        return Replayed(lambda: self._step(lanes, width, padded))


def graphed(monkeypatch: pytest.MonkeyPatch, algorithm: str, **local: Any) -> tuple[Any, CountedSteps]:
    """An engine whose steps are graphed, and these."""
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    partition = {"name": "quantity", "beta": 0.5}
    engine = make_engine(
        algorithms.build(algorithm), engine=stacked, partition=partition, clients=9, lanes=2, local=local
    )
    steps = CountedSteps([engine], engine.stacked)
    engine.alone._graphed = steps
    return engine, steps


SCHEDULES: list[dict[str, Any]] = [
    {"name": "exponential", "decay": 0.7},
    {"name": "cosine", "warmup": 1},
    {"name": "step", "decay": 0.1, "every": 1},
]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
@pytest.mark.parametrize("algorithm", ["fedavg", "fedsat", "fedlada"])
@pytest.mark.parametrize("momentum", [0.0, 0.8])
def test_a_schedule_captures_no_step_again(
    algorithm: str, schedule: dict[str, Any], momentum: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    if momentum and "momentum" in algorithms.build(algorithm).refuses:
        pytest.skip(f"{algorithm} refuses momentum")
    local = {"optimizer": SGD(momentum=momentum), "rounds": 4}
    constant, steps = graphed(monkeypatch, algorithm, **local)
    run_rounds(constant, 4)
    engine, scheduled = graphed(monkeypatch, algorithm, **local, lr_schedule=lr_schedules.build(schedule))
    many, rounds = run_rounds(engine, 4)
    assert 0 < scheduled.captured == steps.captured
    assert len({result.lr for result in rounds}) == 4
    eager, _ = graphed(monkeypatch, algorithm, **local, lr_schedule=lr_schedules.build(schedule))
    eager.alone._graphed = None
    one, _ = run_rounds(eager, 4)
    assert furthest(one.server.model.params, many.server.model.params) == 0
    assert all(furthest(tree, many.server.memory[name]) == 0 for name, tree in one.server.memory.items())
