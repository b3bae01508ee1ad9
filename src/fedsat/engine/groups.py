"""Groups: the lanes that a method's functions see in one call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from fedsat.algorithms import Algorithm, Batch, Outputs, Task
from fedsat.algorithms.base import no_examples, sample_losses
from fedsat.engine.base import BaseEngine, take_step
from fedsat.engine.losses import QuickSensitiveLoss, quick
from fedsat.engine.native.loss import CompiledSensitiveLoss
from fedsat.engine.plan import Lanes, RunPlan, StackedNetwork
from fedsat.tree import State, Tree, tree_map

ALL = slice(None)


@dataclass(frozen=True)
class Group:
    """Lanes that a method's functions see in one call: those of one run, or of several runs that they treat alike."""

    algorithm: Algorithm
    task: Task
    place: slice

    def own(self, tree: Tree) -> Tree:
        """Return the group's part of a tree over all lanes, as views."""
        return tree if self.place == ALL else tree_map(lambda tensor: tensor[self.place], tree)

    def carry(self, carry: State) -> State:
        """Return the group's part of a carry."""
        return {name: self.own(tree) for name, tree in carry.items()}

    @property
    def direct(self) -> bool:
        """Whether a step can be applied in place, without storing the gradient."""
        return self.algorithm.descends and self.task.optimizer.plain

    @cached_property
    def _quick(self) -> Algorithm:
        """The method, with its objective in one kernel on a GPU, or in C if the network is compiled."""
        if any(tensor.is_cuda for tensor in self.task.start.params.values()):
            return quick(self.algorithm, QuickSensitiveLoss)
        compiled = getattr(self.task.network, "compiler", None) is not None
        return quick(self.algorithm, CompiledSensitiveLoss) if compiled else self.algorithm

    def losses(self, lanes: Lanes, outputs: Outputs, batch: Batch) -> tuple[Tensor, Tree]:
        """Return the loss of each sample of the group, and the objective's carry."""
        if self.place != ALL:
            parts = {name: value[self.place] for name, value in vars(outputs).items() if value is not None}
            outputs = Outputs(**parts)
            batch = Batch(batch.x[self.place], batch.y[self.place], batch.real[self.place])
        return sample_losses(self._quick, self.task, self.carry(lanes.carry), self.own(lanes.costs), outputs, batch)

    def step(self, lanes: Lanes, grads: Tree) -> tuple[Tree, State, set[str]]:
        """Take the method's step: return the parameters, the carry, and the names in it that have new values."""
        given = self.carry(lanes.carry)
        params, after = take_step(self.algorithm, self.task, given, self.own(lanes.params), self.own(grads))
        return params, after, {name for name, tree in after.items() if tree is not given[name]}


def group_lanes(runs: Sequence[RunPlan], network: StackedNetwork, lanes: Lanes) -> list[Group]:
    """Return one group for all lanes if the steps of all runs are alike, and otherwise one for each run."""
    if alike([run.engine for run in runs]):
        return [Group(runs[0].engine.algorithm, stepping_task(runs[0], network, lanes), ALL)]
    return [
        Group(run.engine.algorithm, stepping_task(run, network, lanes.take(place)), place)
        for run, place in zip(runs, (slice(start, None, len(runs)) for start in range(len(runs))), strict=True)
    ]


def alike(engines: Sequence[BaseEngine]) -> bool:
    """Whether one call of a step's functions serves the clients of all runs.

    It does if these functions are FedAvg's, perhaps with a `constant_pull`, and objective, optimizer and learning rate
    are the same. They then read nothing but the carry that differs between the runs.
    """
    first, *others = engines
    if not others:
        return True
    hooks = ("perturbation", "penalty", "pull", "step")
    steps = {
        (training.optimizer, training.lr, training.lr_schedule, training.rounds)
        for training in (engine.training for engine in engines)
    }
    return len(steps) == 1 and all(
        engine.algorithm.objective == first.algorithm.objective
        and engine.algorithm.constant_pull == first.algorithm.constant_pull
        and not engine.algorithm.objective.uses_received
        and all(getattr(type(engine.algorithm), hook) is getattr(Algorithm, hook) for hook in hooks)
        for engine in engines
    )


def stepping_task(run: RunPlan, network: StackedNetwork, lanes: Lanes) -> Task:
    """Return the task that methods see during steps."""
    return Task(
        start=run.start,
        received=run.received,
        state=lanes.state,
        class_counts=lanes.class_counts,
        mean_samples=run.engine.mean_samples,
        lr=run.lr,
        epochs=run.engine.training.epochs,
        network=network,
        examples=no_examples,
        optimizer=run.engine.training.optimizer,
    )
