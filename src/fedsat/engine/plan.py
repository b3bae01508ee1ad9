"""What the stacked engine computes in a round: the lanes, and what they do in every step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedsat.algorithms import Batch, Model, Network, Outputs
from fedsat.engine.base import BaseEngine, sent
from fedsat.engine.network import Descent
from fedsat.errors import UsageError
from fedsat.tree import State, Tree, concatenate, tree_map


class StackedNetwork(Network, Protocol):
    """The networks of many clients as one function of stacked weights."""

    @property
    def compiler(self) -> str | None:
        """The compiler of the network, or None if torch computes it."""

    def train(
        self,
        params: Tree,
        buffers: Tree,
        x: Tensor,
        real: Tensor | None = None,
        factors: list[Descent] | None = None,
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

    @staticmethod
    def join(parts: Iterable[Lanes]) -> Lanes:
        """Return the lanes of several runs as one."""
        first, *others = (part.trees() for part in parts)
        if not others:
            return Lanes.of(first)
        if any(_names(trees) != _names(first) for trees in others):
            raise UsageError("runs that train together have clients with different state")
        return Lanes.of({name: concatenate([tree, *(each[name] for each in others)]) for name, tree in first.items()})

    def take(self, lanes: slice | list[int]) -> Lanes:
        """Return some of the lanes; views for a slice."""
        places = lanes if isinstance(lanes, slice) else self._places(lanes)
        return Lanes.of({name: tree_map(lambda tensor: tensor[places], tree) for name, tree in self.trees().items()})

    def spread(self, places: list[int], count: int) -> Lanes:
        """Return `count` lanes with these in the given places; others repeat the first."""
        if places == list(range(count)):
            return self
        sources = dict(zip(places, range(len(places)), strict=True))
        return self.take([sources.get(place, 0) for place in range(count)])

    def put(self, lanes: list[int], others: Lanes) -> None:
        """Overwrite some of the lanes with other clients."""
        mine, theirs, places = self.trees(), others.trees(), self._places(lanes)
        for name, tree in mine.items():
            for key, tensor in tree.items():
                tensor[places] = theirs[name][key]

    def _places(self, lanes: list[int]) -> Tensor:
        """Return the lanes as a tensor; torch would copy a list to the device again for every tensor."""
        return sent(np.array(lanes, dtype=np.int64), self.class_counts.device)


def _names(trees: State) -> dict[str, list[str]]:
    """Return the names of the trees and of their tensors."""
    return {name: list(tree) for name, tree in trees.items()}


@dataclass(frozen=True)
class RunPlan:
    """What is the same for all clients of a run in a round."""

    engine: BaseEngine
    start: Model
    received: State
    lr: float | Tensor


@dataclass(frozen=True)
class Plan:
    """What every lane does in every step of a round."""

    runs: tuple[RunPlan, ...]
    """The runs that train together; lane l belongs to run l mod R."""
    table: Tensor
    """Sample indices, [steps, L, B]; see `lanes.batch_rows` for padding."""
    crops: Tensor | None
    """Augmentation of each sample, [steps, L, B, 3]."""
    partial: NDArray[np.bool_]
    """Whether a lane's batch has padding, [steps, L]; on the host, which chooses the kind of step."""

    def batch(self, rows: Tensor, crops: Tensor | None) -> Batch:
        """Return one batch of every lane from rows [L, B] of the table."""
        engines = [run.engine for run in self.runs]
        if all(engine.train_examples is engines[0].train_examples for engine in engines):
            return engines[0].batch(rows, crops)
        places = [slice(run, None, len(engines)) for run in range(len(engines))]
        each = [
            engine.batch(rows[place], None if crops is None else crops[place])
            for engine, place in zip(engines, places, strict=True)
        ]
        x, y, real = ([getattr(batch, name) for batch in each] for name in ("x", "y", "real"))
        return Batch(interleaved(x), interleaved(y), interleaved(real))


def interleaved(parts: Sequence[Tensor]) -> Tensor:
    """Return the tensors of all groups as one tensor over all lanes."""
    return parts[0] if len(parts) == 1 else torch.stack(list(parts), 1).flatten(0, 1)


def interleave(trees: Sequence[Tree]) -> Tree:
    """Return the trees of all groups as one tree over all lanes."""
    return trees[0] if len(trees) == 1 else tree_map(lambda *parts: interleaved(parts), *trees)
