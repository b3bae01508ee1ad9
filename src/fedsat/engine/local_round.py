"""The clients of a run in a round of the stacked engine: their batches, their initial state, and their results."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from fedsat.algorithms import Batch, LocalResult, Model, Task
from fedsat.algorithms.base import checked
from fedsat.engine.base import BaseEngine, sent
from fedsat.engine.examples import PAD
from fedsat.engine.groups import stepping_task
from fedsat.engine.lanes import Seat, batch_rows, lane_table
from fedsat.engine.plan import Lanes, RunPlan, StackedNetwork
from fedsat.rounds.local import Request, TrainedRound, new_meters
from fedsat.rounds.sampling import batch_order, crops_and_flips
from fedsat.seeding import Indices
from fedsat.tree import State, Tree, concatenate, expand, tree_map


class LocalRound:
    """The clients of one run in a round: their batches, and what is done before and after their steps."""

    def __init__(self, engine: BaseEngine, network: StackedNetwork, request: Request) -> None:
        self.engine, self.network, self.server, self.number = engine, network, request.server, request.number
        self.clients, self.states, number = request.clients, request.states, request.number
        clients = request.clients
        training, federation = engine.training, engine.federation
        held = [federation.indices(client) for client in clients.tolist()]
        self.work = [training.work_of(k, number, len(own)) for k, own in zip(clients.tolist(), held, strict=True)]
        self.width = training.batch_of(max(map(len, held)))
        orders = [
            batch_order(training.seed, number, client, len(own), epochs)
            for client, own, (epochs, _) in zip(clients.tolist(), held, self.work, strict=True)
        ]
        self.rows = [
            batch_rows(own[order], self.width)[:steps]
            for own, order, (_, steps) in zip(held, orders, self.work, strict=True)
        ]
        self.steps = [len(batches) for batches in self.rows]
        self.crops = self._crops(held) if training.augment else []
        self.plan = RunPlan(engine, self.server.model, engine.algorithm.broadcast(self.server), training.lr_in(number))

    def _crops(self, held: Sequence[Indices]) -> list[NDArray[np.uint8]]:
        training, rows = self.engine.training, []
        for client, own, (epochs, steps) in zip(self.clients.tolist(), held, self.work, strict=True):
            drawn = crops_and_flips(training.seed, self.number, client, len(own), epochs, PAD)
            places = batch_rows(np.arange(drawn[..., 0].size).reshape(epochs, -1), self.width)[:steps]
            rows.append(drawn.reshape(-1, 3)[places.clip(min=0)])
        return rows

    def _task(self, lanes: Lanes, places: Sequence[int]) -> Task:
        task = stepping_task(self.plan, self.network, lanes)
        return replace(task, examples=lambda: self._one_pass(places))

    def begin(self, places: list[int]) -> Lanes:
        """Initialise clients for their first step."""
        engine, algorithm, count = self.engine, self.engine.algorithm, len(places)
        clients = self.clients[places]
        device = engine.device
        empty = Lanes(
            params=_owned(expand(self.server.model.params, count)),
            buffers=_owned(expand(self.server.model.buffers, count)),
            carry={},
            costs={},
            meters=new_meters(count, device),
            state=self._states(clients),
            class_counts=sent(engine.federation.class_counts[clients], device),
        )
        with torch.no_grad():
            task = self._task(empty, places)
            begun = checked(algorithm.begin(task), f"{type(algorithm).__name__}.begin")
            carried = {**begun, **task.optimizer.begin(empty.params)}
            empty.carry = {name: _owned(tree) for name, tree in carried.items()}
            empty.costs = _owned(algorithm.objective.begin(task, empty.state["objective"]))
        return empty

    def _states(self, clients: Indices) -> State:
        """Return the clients' states, stacked; new clients start from the method's initial state."""
        algorithm = self.engine.algorithm
        kept = [self.states.get(client) for client in clients.tolist()]
        fresh: State = {}
        if any(state is None for state in kept):
            initial = algorithm.initial_client_state(self.server.model)
            initial["objective"] = algorithm.objective.initial_state(self.engine.federation.dataset.classes)
            fresh = {name: expand(self.engine.on_device(tree), 1) for name, tree in initial.items()}
        filled = [fresh if state is None else state for state in kept]
        return {name: concatenate([state[name] for state in filled]) for name in filled[0]}

    def _one_pass(self, places: Sequence[int]) -> Iterator[Batch]:
        """Iterate once over the samples of some clients, padded to the largest client."""
        engine = self.engine
        held = [engine.federation.indices(client)[None] for client in self.clients[list(places)].tolist()]
        rows = [batch_rows(own, self.width) for own in held]
        seats = [Seat(place, place, 0, len(own)) for place, own in enumerate(rows)]
        for batch in sent(lane_table(seats, rows, -1), engine.device):
            yield engine.batch(batch, None)

    def end(self, done: Lanes, places: list[int]) -> TrainedRound:
        """Return the results of clients that have finished."""
        engine, algorithm = self.engine, self.engine.algorithm
        steps = sent(np.array([self.steps[place] for place in places]), engine.device)
        clients = self.clients[places].tolist()
        with torch.no_grad():
            task = self._task(done, places)
            result = LocalResult(done.params, done.buffers, steps, done.costs)
            finish = engine.protection.finish
            params, state, upload = finish(algorithm, task, done.carry, result, clients, self.number)
        checked(state, f"{type(algorithm).__name__}.end")
        state = {**state, "objective": algorithm.objective.end(done.costs)}
        parts = {name: _each(tree, len(places)) for name, tree in state.items()}
        each = [{name: trees[place] for name, trees in parts.items()} for place in range(len(places))]
        updates = engine.updates(
            clients, Model(params, done.buffers), upload, steps, engine.training.lr_in(self.number)
        )
        return TrainedRound(updates, each, done.meters)


def _each(tree: Tree, clients: int) -> list[Tree]:
    """Return each client's part of a stacked tree as a copy, because it outlives the round."""
    parts = {name: torch.split(tensor, 1) for name, tensor in tree.items()}
    return [{name: own[place].clone() for name, own in parts.items()} for place in range(clients)]


def _owned(tree: Tree) -> Tree:
    """Return a contiguous copy of the tree, so that lanes can be written one by one."""
    return tree_map(lambda tensor: tensor.clone(memory_format=torch.contiguous_format), tree)
