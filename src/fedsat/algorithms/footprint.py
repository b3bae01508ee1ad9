"""Find what a method stores and sends by running its functions on a one-parameter model."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedsat.algorithms.base import Algorithm, LocalResult, Model, Outputs, Server, Task
from fedsat.algorithms.weighting import STATEMENT, with_statement
from fedsat.tree import State, Tree


@dataclass(frozen=True)
class Footprint:
    """Memory and traffic of a method, in units of one model."""

    client: tuple[str, ...]
    """Names of the model-sized trees that every participating client keeps."""
    server: tuple[str, ...]
    """Names of the model-sized trees that the server keeps besides the model."""
    down: int
    """Models that a sampled client downloads in a round."""
    up: int
    """Models that a client uploads in a round."""


def footprint(algorithm: Algorithm) -> Footprint:
    """Return the method's footprint. Besides the model itself, only parameters count, not buffers."""
    model = Model({"w": torch.ones(1)}, {})
    server = Server(model, algorithm.initial_memory(model))
    state, upload = rehearse(algorithm, model)
    received = algorithm.broadcast(server)
    upload.pop(STATEMENT, None)  # a few numbers, not a model
    return Footprint(_names(state), _names(server.memory), 1 + len(_names(received)), 1 + len(_names(upload)))


def rehearse(algorithm: Algorithm, model: Model, classes: int = 1) -> tuple[State, State]:
    """Return what a client that received `model` would keep and upload; only names and shapes are meaningful."""
    server = Server(model, algorithm.initial_memory(model))
    received, kept = algorithm.broadcast(server), algorithm.initial_client_state(model)
    objective = algorithm.objective.initial_state(classes)
    stacked = {name: _with_axis(tree) for name, tree in {**kept, "objective": objective}.items()}
    task = Task(
        start=model,
        received=received,
        state=stacked,
        class_counts=torch.ones(1, classes, dtype=torch.int64),
        mean_samples=1.0,
        lr=1.0,
        epochs=1,
        network=echo,
        examples=lambda: iter(()),
    )
    with torch.no_grad():
        carry = algorithm.begin(task)
        params, carry = algorithm.step(task, carry, _with_axis(model.params), _with_axis(model.params))
        result = LocalResult(params, _with_axis(model.buffers), torch.ones(1, dtype=torch.int64))
        state, upload = algorithm.end(task, carry, result)
    return state, with_statement(upload, algorithm.weighting, task.class_counts)


def echo(params: Tree, buffers: Tree, x: Tensor) -> Outputs:
    """Stand in for a network where a task has no samples."""
    del params, buffers
    return Outputs(x)


def _with_axis(tree: Tree) -> Tree:
    return {name: tensor.unsqueeze(0) for name, tensor in tree.items()}


def _names(state: State) -> tuple[str, ...]:
    return tuple(name.replace("_", " ") for name, tree in state.items() if "w" in tree)
