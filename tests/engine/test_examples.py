"""`task.examples()` is the same on both engines: all samples in `begin` and `end`, an error in the steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

import fedsat
from fedsat.algorithms import Algorithm, Batch, LocalResult, Outputs, Task
from fedsat.errors import UsageError
from fedsat.tree import State, Tree

RUN: dict[str, Any] = {
    "clients": 10, "per_round": 4, "workers": 1, "rounds": 2, "epochs": 1, "device": "cpu", "partition": "ls",
}  # fmt: skip


def means(task: Task) -> Tensor:
    """The mean input and the number of samples of each client, [C, 2]."""
    total, count = torch.zeros(len(task.class_counts)), torch.zeros(len(task.class_counts))
    for batch in task.examples():
        x = batch.x.flatten(2).mean(2)
        total, count = total + torch.where(batch.real, x, 0).sum(1), count + batch.real.sum(1)
    assert torch.equal(count, task.class_counts.sum(1).float())
    return torch.stack([total / count, count], 1)


@dataclass(frozen=True)
class Means(Algorithm):
    """Reads the samples before and after training."""

    def begin(self, task: Task) -> State:
        return {"before": {"mean": means(task)}}

    def end(self, task: Task, carry: State, result: LocalResult) -> tuple[State, State]:
        return {}, {"before": carry["before"], "after": {"mean": means(task)}}


@pytest.mark.parametrize("engine", ["stacked", "sequential"])
def test_all_samples_in_begin_and_end(engine: str) -> None:
    run = fedsat.prepare(fedsat.configure(algorithm=Means, engine=engine, **RUN))
    trained = run.setup.engine.train(run.training.server, torch.tensor([3, 0, 7]).numpy(), {}, 1)
    uploads = trained.updates.uploads
    federation = run.setup.federation
    assert federation is not None
    assert uploads["before"]["mean"][:, 1].tolist() == federation.sizes[[3, 0, 7]].tolist()
    assert torch.equal(uploads["before"]["mean"], uploads["after"]["mean"])


@dataclass(frozen=True)
class InPenalty(Algorithm):
    """Asks for the samples in the middle of training."""

    def penalty(self, task: Task, carry: State, outputs: Outputs, batch: Batch) -> Tensor | None:
        next(task.examples())
        return None


@dataclass(frozen=True)
class InStep(Algorithm):
    """Asks for the samples in a step."""

    def step(self, task: Task, carry: State, params: Tree, grads: Tree) -> tuple[Tree, State]:
        next(task.examples())
        return params, carry


@pytest.mark.parametrize("engine", ["stacked", "sequential"])
@pytest.mark.parametrize("method", [InPenalty, InStep])
def test_the_same_error_in_the_steps(method: type[Algorithm], engine: str) -> None:
    with pytest.raises(UsageError, match=r"task\.examples\(\) is available in begin and end"):
        fedsat.run(algorithm=method, engine=engine, **RUN)
