"""The stacked engine: trains all clients of a round at once on a CPU or a GPU.

It computes the same results as the sequential engine. Clients are placed in lanes (see `lanes`). Their weights are
stacked and the network is folded (see `fold`), so a step of many clients costs little more than a step of one.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from fedsat.algorithms import Algorithm, Batch, LocalResult, Model, Server, Task, Updates
from fedsat.algorithms.base import checked
from fedsat.data import Federation
from fedsat.engine.base import BaseEngine, tuned_kernels
from fedsat.engine.capacity import lanes_that_fit
from fedsat.engine.evaluate import Counter, GraphedCounter
from fedsat.engine.examples import PAD, Examples
from fedsat.engine.graphs import GraphedSteps
from fedsat.engine.lanes import Seat, batch_rows, lane_table, seat_clients, stretches
from fedsat.engine.steps import EagerSteps, Lanes, Plan, StackedNetwork, Steps, stepping_task
from fedsat.engine.threads import ThreadChoice
from fedsat.metrics import ClassCounts
from fedsat.rounds.local import LocalTraining, TrainedRound, new_meters
from fedsat.rounds.sampling import batch_order, crops_and_flips
from fedsat.seeding import Indices, generator
from fedsat.tree import State, Tree, concatenate, expand, tree_map

logger = logging.getLogger(__name__)


class StackedEngine(BaseEngine):
    """Trains the clients of a round at once, at most `lanes` of them at a time."""

    def __init__(
        self,
        network: StackedNetwork,
        module: nn.Module,
        federation: Federation,
        algorithm: Algorithm,
        training: LocalTraining,
        device: torch.device,
        dtype: torch.dtype,
        lanes: int | None = None,
    ) -> None:
        super().__init__(network, module, federation, algorithm, training, device, dtype)
        self.stacked = network
        largest = training.batch_of(int(federation.sizes.max()))
        fitting = lanes_that_fit(module, federation.dataset.input_shape, largest, device)
        self.lanes = lanes or fitting
        self._graphed = GraphedSteps(self, network) if device.type == "cuda" else None
        self.threads = ThreadChoice(module)

    def counter(self, examples: Examples, module: nn.Module) -> Counter:
        """Return the counter that evaluates models on the given examples; it uses CUDA graphs on a GPU."""
        plain = super().counter(examples, module)
        if self.device.type != "cuda":
            return plain
        return GraphedCounter(plain.network, plain.examples, plain.classes, plain.batch)

    def evaluate_workers(self, updates: Updates, workers: Indices) -> ClassCounts:
        """Evaluate each client's model on its workers' samples; on a CPU, several models at once."""
        if self.device.type == "cuda":
            return super().evaluate_workers(updates, workers)
        samples, owners = zip(*(self.joined(self.held_by_workers(nodes)) for nodes in workers), strict=True)
        with self.threads.applied():
            counts = self.train_counter.count_each(updates.model, samples, owners, workers.shape[1])
        return ClassCounts.from_confusion(counts)

    def train(self, server: Server, clients: Indices, states: dict[int, State], round_number: int) -> TrainedRound:
        """Train the sampled clients at once."""
        generators = [] if self.device.type == "cpu" else [self.device]
        with torch.random.fork_rng(devices=generators), self.threads.applied():
            return self._train_in_memory(server, clients, states, round_number)

    def _train_in_memory(
        self, server: Server, clients: Indices, states: dict[int, State], round_number: int
    ) -> TrainedRound:
        """Train with as many lanes as fit. If the GPU runs out of memory, halve the lanes and restart the round."""
        while True:
            # Only dropout in user models uses torch's global generator, which `train` restores.
            torch.manual_seed(int(generator(self.training.seed, "dropout", round_number).integers(2**62)))
            try:
                with tuned_kernels():
                    return Round(self, server, clients, states, round_number).train()
            except torch.cuda.OutOfMemoryError:
                lanes = min(self.lanes, len(clients))
                if lanes == 1 or self._graphed is None:
                    raise
                self.lanes = lanes // 2
                self._graphed = GraphedSteps(self, self.stacked)
            torch.cuda.empty_cache()
            logger.warning(
                "round %d: out of GPU memory with %d lanes; retrying with %d", round_number, lanes, self.lanes
            )

    def steps(self, plan: Plan) -> Steps:
        """Return what takes the steps of a round; on a GPU, CUDA graphs."""
        return EagerSteps(self, self.stacked, plan, self.threads) if self._graphed is None else self._graphed.load(plan)


class Round:
    """The local training of one round."""

    def __init__(
        self, engine: StackedEngine, server: Server, clients: Indices, states: dict[int, State], number: int
    ) -> None:
        self.engine, self.server, self.clients, self.states, self.number = engine, server, clients, states, number
        training, federation = engine.training, engine.federation
        held = [federation.indices(client) for client in clients.tolist()]
        self.work = [training.work_of(k, number, len(own)) for k, own in zip(clients.tolist(), held, strict=True)]
        self.width = training.batch_of(max(map(len, held)))
        orders = [
            batch_order(training.seed, number, client, len(own), epochs)
            for client, own, (epochs, _) in zip(clients.tolist(), held, self.work, strict=True)
        ]
        rows = [
            batch_rows(own[order], self.width)[:steps]
            for own, order, (_, steps) in zip(held, orders, self.work, strict=True)
        ]
        self.steps = [len(batches) for batches in rows]
        self.seats = seat_clients(self.steps, engine.lanes)
        self.plan = Plan(
            start=server.model,
            received=engine.algorithm.broadcast(server),
            lr=training.lr_in(number),
            table=torch.from_numpy(lane_table(self.seats, rows, -1)).to(engine.device),
            crops=self._crops(held) if training.augment else None,
            partial=lane_table(self.seats, [np.any(own < 0, axis=1, keepdims=True) for own in rows], 0)[..., 0],
        )

    def _crops(self, held: Sequence[Indices]) -> Tensor:
        training, rows = self.engine.training, []
        for client, own, (epochs, steps) in zip(self.clients.tolist(), held, self.work, strict=True):
            drawn = crops_and_flips(training.seed, self.number, client, len(own), epochs, PAD)
            places = batch_rows(np.arange(drawn[..., 0].size).reshape(epochs, -1), self.width)[:steps]
            rows.append(drawn.reshape(-1, 3)[places.clip(min=0)])
        return torch.from_numpy(lane_table(self.seats, rows, 0)).to(self.engine.device)

    def train(self) -> TrainedRound:
        """Run all stretches and collect the clients' results."""
        steps = self.engine.steps(self.plan)
        groups: list[TrainedRound] = []
        places: list[int] = []
        for stretch in stretches(self.seats):
            if stretch.entering:
                newcomers = self._begin([seat.client for seat in stretch.entering])
                steps.enter(newcomers, [seat.lane for seat in stretch.entering])
            groups.append(self._end(steps.take(stretch), stretch.leaving))
            places += [seat.client for seat in stretch.leaving]
        return TrainedRound.of(groups).take(np.argsort(places).tolist())

    def _task(self, lanes: Lanes, places: Sequence[int]) -> Task:
        task = stepping_task(self.engine, self.engine.stacked, self.plan, lanes)
        return replace(task, examples=lambda: self._one_pass(places))

    def _begin(self, places: list[int]) -> Lanes:
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
            class_counts=torch.from_numpy(engine.federation.class_counts[clients]).to(device),
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
        for batch in torch.from_numpy(lane_table(seats, rows, -1)).to(engine.device):
            yield engine.batch(batch, None)

    def _end(self, lanes: Lanes, leaving: Sequence[Seat]) -> TrainedRound:
        """Return the results of the clients that have finished."""
        engine, algorithm = self.engine, self.engine.algorithm
        done = lanes.take([seat.lane for seat in leaving])
        steps = torch.tensor([seat.end - seat.begin for seat in leaving], device=engine.device)
        clients = self.clients[[seat.client for seat in leaving]].tolist()
        with torch.no_grad():
            task = self._task(done, [seat.client for seat in leaving])
            result = LocalResult(done.params, done.buffers, steps, done.costs)
            finish = engine.protection.finish
            sent, state, upload = finish(algorithm, task, done.carry, result, clients, self.number)
        checked(state, f"{type(algorithm).__name__}.end")
        state = {**state, "objective": algorithm.objective.end(done.costs)}
        each = [{name: _slice(tree, place) for name, tree in state.items()} for place in range(len(leaving))]
        updates = engine.updates(clients, Model(sent, done.buffers), upload, steps, self.plan.lr)
        return TrainedRound(updates, each, done.meters)


def _slice(tree: Tree, place: int) -> Tree:
    """Return one client's part of a stacked tree as a copy, because it outlives the round."""
    return tree_map(lambda tensor: tensor[place : place + 1].clone(), tree)


def _owned(tree: Tree) -> Tree:
    """Return a contiguous copy of the tree, so that lanes can be written one by one."""
    return tree_map(lambda tensor: tensor.clone(memory_format=torch.contiguous_format), tree)
