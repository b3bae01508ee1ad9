"""Runs that train together: each ends as it does alone, whatever happens to the others."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor, nn

import fedsat
from fedsat.engine.stack import Stack
from fedsat.errors import TrainingError
from fedsat.experiment.batch import Silent, carry_out
from fedsat.experiment.jobs import Job
from fedsat.experiment.run import Run
from fedsat.experiment.store import Shelf
from fedsat.experiment.together import families, family, open_together, train_together
from fedsat.metrics import RoundRecord
from tests.support.runs import TINY, results

SHORT: dict[str, Any] = {
    **TINY,
    "algorithm": "fedavg",
    "clients": 6,
    "per_round": 2,
    "rounds": 3,
    "checkpoint_every": 1,
}
"""Checkpoints after each round, so that each can be resumed from."""


@pytest.fixture
def stacks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of runs in each round that a stack has trained."""
    sizes: list[int] = []
    train_ahead = Stack.train_ahead

    def counted(stack: Stack, requests: Sequence[Any]) -> None:
        sizes.append(len(requests))
        train_ahead(stack, requests)

    monkeypatch.setattr(Stack, "train_ahead", counted)
    return sizes


def opened(folder: Path, settings: Sequence[dict[str, Any]]) -> list[Run]:
    return [
        fedsat.prepare(fedsat.configure(**{**SHORT, **own}), folder / str(place)) for place, own in enumerate(settings)
    ]


def alone(folder: Path, settings: Sequence[dict[str, Any]]) -> None:
    for run in opened(folder, settings):
        try:
            fedsat.train(run, for_more=False)
        except TrainingError:
            assert run.status == "failed"


@pytest.fixture(scope="module")
def seeds_alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of `SEEDS`, trained alone."""
    folder = tmp_path_factory.mktemp("alone")
    alone(folder, SEEDS)
    return folder


SETTINGS: dict[str, list[dict[str, Any]]] = {
    "seeds": [{"seed": seed, "algorithm": "fedsat"} for seed in range(3)],
    "rounds": [{"seed": seed, "rounds": 1 + seed, "algorithm": "scaffold"} for seed in range(3)],
    "rates and methods' numbers": [{"algorithm": {"name": "fedprox", "mu": mu}, "lr": mu} for mu in (0.01, 0.1)],
    "clients that do not respond": [{"seed": seed, "dropout": 0.5, "rounds": 5} for seed in range(3)],
}
SEEDS: list[dict[str, Any]] = [{"seed": seed} for seed in range(3)]


@pytest.mark.parametrize("name", list(SETTINGS))
def test_files_are_those_of_runs_alone(name: str, tmp_path: Path, stacks: list[int]) -> None:
    settings = SETTINGS[name]
    alone(tmp_path / "alone", settings)
    assert stacks == []
    ends = list(train_together(opened(tmp_path / "together", settings)))
    assert sorted(ends) == [(place, None) for place in range(len(settings))]
    assert max(stacks) == len(settings)
    for place in range(len(settings)):
        assert results(tmp_path / "together" / str(place)) == results(tmp_path / "alone" / str(place))


def test_a_run_that_fails_leaves_the_others(tmp_path: Path, seeds_alone: Path, stacks: list[int]) -> None:
    settings = [{"seed": 0}, {"seed": 1, "lr": 1e30}, {"seed": 2}]
    alone(tmp_path / "alone", settings[1:2])
    ends = dict(train_together(opened(tmp_path / "together", settings)))
    assert [isinstance(ends[place], TrainingError) for place in range(3)] == [False, True, False]
    assert stacks == [3, 2, 2]
    for place, own in enumerate([seeds_alone / "0", tmp_path / "alone" / "0", seeds_alone / "2"]):
        assert results(tmp_path / "together" / str(place)) == results(own)


class Wrong(fedsat.algorithms.Algorithm):
    """Raises an error within a step, where all runs of a stack train."""

    def step(self, task: Any, carry: Any, params: Any, grads: Any) -> Any:
        if float(task.lr) == 0.07:
            raise ValueError("boom")
        return super().step(task, carry, params, grads)


def test_an_error_in_the_stack_is_that_of_one_run(tmp_path: Path, stacks: list[int]) -> None:
    settings: list[dict[str, Any]] = [{"algorithm": Wrong, "lr": lr} for lr in (0.05, 0.07, 0.09)]
    ends = dict(train_together(opened(tmp_path, settings)))
    assert repr(ends[1]) == "ValueError('boom')"
    assert ends[0] is ends[2] is None
    assert stacks == [3, 2, 2]


def test_a_stack_that_fails_is_not_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []

    def fails(_: Stack, requests: Sequence[Any]) -> None:
        tried.append(len(requests))
        raise RuntimeError("no room")

    monkeypatch.setattr(Stack, "train_ahead", fails)
    assert sorted(train_together(opened(tmp_path, SEEDS))) == [(0, None), (1, None), (2, None)]
    assert tried == [3]


@pytest.mark.parametrize("end", [KeyboardInterrupt, SystemExit, OSError])
def test_interrupted_runs_are_resumed_together(end: type[BaseException], tmp_path: Path, seeds_alone: Path) -> None:
    def stop(run: Run, record: RoundRecord) -> None:
        if (run.setup.config.seed, record.round) == (1, 2):
            raise end

    ends = train_together(opened(tmp_path / "cut", SEEDS), show=stop)
    if end is OSError:  # one run fails, and the caller ends the others
        assert repr(next(ends)) == "(1, OSError())"
        ends.close()
    else:
        with pytest.raises(end):
            next(ends)
    runs = [fedsat.restore(tmp_path / "cut" / str(place)) for place in range(3)]
    assert [run.training.rounds for run in runs] == [2, 2, 1]
    assert all(error is None for _, error in train_together(runs))
    for place in range(3):
        assert results(tmp_path / "cut" / str(place)) == results(seeds_alone / str(place))


def test_seconds_are_shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = opened(tmp_path, SEEDS)
    train_ahead = Stack.train_ahead

    def slow(stack: Stack, requests: Sequence[Any]) -> None:
        train_ahead(stack, requests)
        for engine in stack.engines:
            assert engine.ahead is not None
            assert 0 < engine.ahead[1].seconds < 10
            object.__setattr__(engine.ahead[1], "seconds", 100.0)

    monkeypatch.setattr(Stack, "train_ahead", slow)
    list(train_together(runs))
    assert all(100 < record.seconds["train"] < 110 for run in runs for record in run.records)


def jobs(*settings: dict[str, Any]) -> list[Job]:
    return [Job(f"run{place}", fedsat.configure(**{**SHORT, **own})) for place, own in enumerate(settings)]


def test_families() -> None:
    def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
        return len(families(jobs(one, other))) == 1

    assert same({"seed": 1}, {"seed": 2, "lr": 0.2, "epochs": 3, "rounds": 9})
    assert same({"classes_per_client": 2}, {"partition": {"name": "lsmc", "classes_per_client": 3}})
    assert same({"optimizer": {"name": "sgd", "momentum": 0.5}}, {"optimizer": {"name": "sgd", "momentum": 0.9}})
    assert not same({"optimizer": {"name": "sgd", "momentum": 0.5}}, {})
    assert not same({}, {"algorithm": "fedsat"})
    assert not same({}, {"batch_size": 16})
    assert not same({}, {"precision": "float64"})
    assert not same({}, {"hidden": [9]})
    assert not same({"batch_size": "all"}, {"batch_size": "all"})
    assert not same({"minutes": 5.0}, {"minutes": 5.0})
    assert family(jobs({"track": ["tensorboard"]})[0].config) is None
    first, second = families(jobs({"seed": 1}, {"algorithm": "fedsat"}, {"seed": 2}))
    assert [[job.label for job in each] for each in (first, second)] == [["run0", "run2"], ["run1"]]


class Drops(nn.Module):
    """A network with dropout."""

    def __init__(self, input_shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.layer = nn.Linear(math.prod(input_shape), classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(nn.functional.dropout(x.flatten(1), 0.5, self.training))


def test_how_many_runs_train_together(tmp_path: Path) -> None:
    def sizes(count: int, **settings: Any) -> list[int]:
        waiting, found = jobs(*({**settings, "seed": seed} for seed in range(count))), list[int]()
        while waiting:
            found.append(len(open_together(waiting, lambda job: (fedsat.prepare(job.config), tmp_path))))
            waiting = waiting[found[-1] :]
        return found

    assert sizes(3) == [3]
    assert sizes(7, per_round=12, clients=12) == [4, 3]  # 64 lanes are those of five runs
    assert sizes(4, hidden=[200], compile="off") == [2, 2]  # 1,200,000 weights are those of three runs with 2 clients
    assert sizes(2, engine="sequential") == [1, 1]
    drops = replace(jobs({})[0].config, model=f"{__name__}:Drops")
    assert len(open_together([Job("", drops)] * 2, lambda job: (fedsat.prepare(job.config), tmp_path))) == 1


def test_wrong_settings_of_a_later_run(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path)
    wanted = jobs({"seed": 0}, {"seed": 1, "clients": 100_000})
    with pytest.raises(fedsat.FedsatError, match="100,000 clients"):
        carry_out(Silent(), wanted, shelf)
    assert shelf.find(wanted[0].config) is not None
