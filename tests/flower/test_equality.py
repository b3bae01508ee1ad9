"""Nodes that hold the parts of a federation do what the sequential engine does with it, method by method."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import fedsat
from fedsat.algorithms import algorithms
from fedsat.experiment import Config, Run, carry_on

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedsat[flower]'")

from fedsat.flower import Terms
from fedsat.flower.server import prepare
from loop_grid import LoopGrid

CLIENTS = 5


def settings(folder: Path, **others: Any) -> dict[str, Any]:
    usual = {"clients": CLIENTS, "per_round": 3, "workers": 3, "rounds": 3, "epochs": 2, "batch_size": 4, "lr": 0.05}
    partition = {"name": "ls", "beta": 0.5}
    return {"dataset": str(folder), "partition": partition, "engine": "sequential", **usual, **others}


def nodes(folder: Path, clients: int = CLIENTS) -> list[dict[str, Any]]:
    return [{"dataset": str(folder), "partition-id": client, "num-partitions": clients} for client in range(clients)]


def federate(grid: LoopGrid, config: Config, terms: Terms | None = None, out: Path | None = None) -> Run:
    return carry_on(prepare(grid, config, terms or Terms(timeout=0.5, wait=5), out))


def assert_same(left: Run, right: Run) -> None:
    trees = [(left.model.params, right.model.params), (left.model.buffers, right.model.buffers)]
    trees += [
        (left.training.server.memory[name], right.training.server.memory[name]) for name in left.training.server.memory
    ]
    for mine, other in trees:
        assert mine.keys() == other.keys()
        for name in mine:
            torch.testing.assert_close(mine[name], other[name], rtol=1e-5, atol=1e-7)
    for line, other_line in zip(left.metrics, right.metrics, strict=True):
        for key in ("round", "clients"):
            assert line[key] == other_line[key]
        for key in ("train_loss", "weights", "test_accuracy", "test_loss", "recall", "effective_clients"):
            assert line[key] == pytest.approx(other_line[key], rel=1e-5, abs=1e-7)
        assert line["client_accuracy"] == pytest.approx(other_line["client_accuracy"], rel=1e-6)


@pytest.mark.parametrize("method", list(algorithms))
def test_every_method_equals_the_sequential_engine(method: str, clouds: Path) -> None:
    table = settings(clouds, algorithm=method)
    alone = fedsat.run(**table)
    together = federate(LoopGrid(*nodes(clouds)), fedsat.configure(**table))
    assert_same(together, alone)
    assert not any("left_out" in line for line in together.metrics)
