"""Local steps of many clients at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedsat.algorithms import Batch, Model, Network, Outputs, Task
from fedsat.algorithms.base import gradient, no_examples, sample_losses
from fedsat.engine.base import BaseEngine, take_step
from fedsat.engine.lanes import Stretch
from fedsat.engine.network import Factors
from fedsat.engine.threads import ThreadChoice
from fedsat.rounds.local import meter
from fedsat.tree import State, Tree, add, add_in_place, tree_map


class StackedNetwork(Network, Protocol):
    """The networks of many clients as one function of stacked weights."""

    def train(
        self,
        params: Tree,
        buffers: Tree,
        x: Tensor,
        real: Tensor | None = None,
        factors: list[Factors] | None = None,
    ) -> Outputs:
        """Run in training mode and update the running statistics in `buffers`; `real` marks padding, if any.

        If `factors` is given, layers may append the factors of a weight's gradient to it instead of computing the
        gradient.
        """


@dataclass
class Lanes:
    """Everything that changes between steps for the clients in training, stacked over the lanes."""

    params: Tree
    buffers: Tree
    carry: State
    costs: Tree
    """The objective's carry."""
    meters: Tree
    state: State
    """The clients' states from earlier rounds; constant during the round."""
    class_counts: Tensor

    def trees(self) -> State:
        """Return everything as named trees."""
        named = {"params": self.params, "buffers": self.buffers, "costs": self.costs, "meters": self.meters}
        named["class_counts"] = {"": self.class_counts}
        named |= {f"carry/{name}": tree for name, tree in self.carry.items()}
        return named | {f"state/{name}": tree for name, tree in self.state.items()}

    @staticmethod
    def of(trees: State) -> Lanes:
        """Invert `trees`."""

        def group(prefix: str) -> State:
            return {name.removeprefix(prefix): tree for name, tree in trees.items() if name.startswith(prefix)}

        counts = trees["class_counts"][""]
        plain = (trees[name] for name in ("params", "buffers", "costs", "meters"))
        params, buffers, costs, meters = plain
        return Lanes(params, buffers, group("carry/"), costs, meters, group("state/"), counts)

    def take(self, lanes: slice | list[int]) -> Lanes:
        """Return some of the lanes; views for a slice."""
        return Lanes.of({name: tree_map(lambda tensor: tensor[lanes], tree) for name, tree in self.trees().items()})

    def put(self, lanes: list[int], others: Lanes) -> None:
        """Overwrite some of the lanes with other clients."""
        mine, theirs = self.trees(), others.trees()
        for name, tree in mine.items():
            for key, tensor in tree.items():
                tensor[lanes] = theirs[name][key]


@dataclass(frozen=True)
class Plan:
    """What every lane does in every step of a round."""

    start: Model
    received: State
    lr: float
    table: Tensor
    """Sample indices, [steps, L, B]; see `lanes.batch_rows` for padding."""
    crops: Tensor | None
    """Augmentation of each sample, [steps, L, B, 3]."""
    partial: NDArray[np.bool_]
    """Whether a lane's batch has padding, [steps, L]; on the host, which chooses the kind of step."""


class Steps(Protocol):
    """Takes the steps of a round, eagerly or with CUDA graphs."""

    def enter(self, newcomers: Lanes, places: list[int]) -> None:
        """Place clients in the given lanes."""

    def take(self, stretch: Stretch) -> Lanes:
        """Take the steps of a stretch and return the lanes afterwards."""


class EagerSteps:
    """Takes each step operation by operation."""

    def __init__(self, engine: BaseEngine, network: StackedNetwork, plan: Plan, threads: ThreadChoice) -> None:
        self._engine, self._network, self._plan, self._threads = engine, network, plan, threads
        self._lanes: Lanes | None = None

    def enter(self, newcomers: Lanes, places: list[int]) -> None:
        """Place clients in the given lanes; the first clients fill all of them."""
        if self._lanes is None:
            self._lanes = newcomers
        else:
            self._lanes.put(places, newcomers)

    def take(self, stretch: Stretch) -> Lanes:
        """Take the steps of a stretch and drop the lanes that have closed."""
        if self._lanes is None:
            raise AssertionError("no client has entered")
        engine, plan, width = self._engine, self._plan, stretch.width
        self._lanes = lanes = self._lanes.take(slice(0, width))
        task = stepping_task(engine, self._network, plan, lanes)
        for step in range(stretch.begin, stretch.end):
            crops = None if plan.crops is None else plan.crops[step, :width]
            batch = engine.batch(plan.table[step, :width], crops)
            padded = bool(plan.partial[step, :width].any())
            self._threads.take(partial(advance, engine, self._network, task, lanes, batch, padded))
        return lanes


def stepping_task(engine: BaseEngine, network: StackedNetwork, plan: Plan, lanes: Lanes) -> Task:
    """Return the task that methods see during steps."""
    return Task(
        start=plan.start,
        received=plan.received,
        state=lanes.state,
        class_counts=lanes.class_counts,
        mean_samples=engine.mean_samples,
        lr=plan.lr,
        epochs=engine.training.epochs,
        network=network,
        examples=no_examples,
        optimizer=engine.training.optimizer,
    )


def advance(engine: BaseEngine, network: StackedNetwork, task: Task, lanes: Lanes, batch: Batch, padded: bool) -> None:
    """Take one step in all lanes: the stacked counterpart of the sequential engine's inner loop."""
    algorithm = engine.algorithm

    def costs_at(point: Tree, buffers: Tree, factors: list[Factors] | None) -> tuple[Tree, Tensor, Tree]:
        leaves = {name: tensor.detach().requires_grad_() for name, tensor in point.items()}
        outputs = network.train(leaves, buffers, batch.x, batch.real if padded else None, factors)
        losses, after = sample_losses(algorithm, task, lanes.carry, lanes.costs, outputs, batch)
        means = torch.where(batch.real, losses, 0).sum(1) / batch.real.sum(1) if padded else losses.mean(1)
        return leaves, means, after

    @torch.enable_grad()
    def gradient_at_params() -> Tree:
        leaves, means, _ = costs_at(lanes.params, tree_map(torch.clone, lanes.buffers), None)
        return gradient(means, leaves)

    with torch.no_grad():
        perturbation = algorithm.perturbation(task, lanes.carry, lanes.params, gradient_at_params)
    point = lanes.params if perturbation is None else add(lanes.params, perturbation)
    factors: list[Factors] | None = [] if algorithm.descends and task.optimizer.plain and perturbation is None else None
    leaves, means, lanes.costs = costs_at(point, lanes.buffers, factors)
    if factors is None:
        grads = gradient(means, leaves)
        with torch.no_grad():
            lanes.params, lanes.carry = take_step(algorithm, task, lanes.carry, lanes.params, grads)
    else:
        with torch.no_grad():
            pull = algorithm.pull(task, lanes.carry, lanes.params)
        descend_in_place(leaves, pull, means, factors, task.lr)
    lanes.meters = meter(lanes.meters, means.detach())


def descend_in_place(
    params: Tree, pull: Tree | None, costs: Tensor, factors: Sequence[Factors], lr: float | Tensor
) -> None:
    """Apply θ ← θ − η (∇L + pull) in place, where L are the clients' costs [C].

    Gradients given as factors are multiplied and added to the weights in one operation. On a CPU, storing the gradient
    first would cost as much time as the product itself. On a GPU, there are none.
    """
    targets: list[Any] = [*params.values(), *(product.out for product in factors)]  # tensors and edges
    grads = torch.autograd.grad(costs.sum(), targets, allow_unused=True)
    with torch.no_grad():
        if pull is not None:
            add_in_place(list(params.values()), [pull[name] for name in params], -lr)
        formed = [(tensor, grad) for tensor, grad in zip(params.values(), grads, strict=False) if grad is not None]
        if formed:
            add_in_place([tensor for tensor, _ in formed], [grad for _, grad in formed], -lr)
        for product, grad in zip(factors, grads[len(params) :], strict=True):
            if grad is not None:
                product.weight.baddbmm_(grad, product.columns.transpose(1, 2), alpha=-float(lr))
