"""The sequential engine: trains one client after another. It is the reference, and convenient for debugging."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import nn

from fedsat.algorithms import Algorithm, Batch, LocalResult, Model, Server, Task
from fedsat.algorithms.base import checked, no_examples
from fedsat.data import Federation
from fedsat.engine.base import BaseEngine
from fedsat.engine.examples import PAD
from fedsat.engine.network import ModuleNetwork
from fedsat.rounds.local import LocalTraining, TrainedRound, meter, new_meters
from fedsat.rounds.sampling import batch_order, crops_and_flips
from fedsat.seeding import Indices, generator
from fedsat.tree import State, Tree, tree_map


class SequentialEngine(BaseEngine):
    """Trains the clients of a round one at a time."""

    def __init__(
        self,
        module: nn.Module,
        federation: Federation,
        algorithm: Algorithm,
        training: LocalTraining,
        device: torch.device,
        dtype: torch.dtype,
        half: bool = False,
    ) -> None:
        self._module_network = ModuleNetwork(module, algorithm.uses_features, half)
        super().__init__(self._module_network, module, federation, algorithm, training, device, dtype)

    def train(self, server: Server, clients: Indices, states: dict[int, State], round_number: int) -> TrainedRound:
        """Train the sampled clients; `states` holds the states of earlier participants."""
        return self.train_from(server.model, self.algorithm.broadcast(server), clients, states, round_number)

    def train_from(
        self, model: Model, received: State, clients: Indices, states: dict[int, State], round_number: int
    ) -> TrainedRound:
        """Train from what a client receives: the model and what the method broadcasts."""
        trained = []
        for client in clients.tolist():
            task = self._task(model, received, states.get(client), client)
            trained.append(self._train_client(task, client, round_number))
        return TrainedRound.of(trained)

    def _task(self, start: Model, received: State, state: State | None, client: int) -> Task:
        if state is None:
            kept = {
                **self.algorithm.initial_client_state(start),
                "objective": self.algorithm.objective.initial_state(self.federation.dataset.classes),
            }
            state = {name: _with_axis(self.on_device(tree)) for name, tree in kept.items()}
        return Task(
            start=start,
            received=received,
            state=state,
            class_counts=torch.from_numpy(self.federation.class_counts[[client]]).to(self.device),
            mean_samples=self.mean_samples,
            lr=self.training.lr,
            epochs=self.training.epochs,
            network=self.network,
            examples=lambda: self._one_pass(client),
        )

    def _train_client(self, task: Task, client: int, round_number: int) -> TrainedRound:
        """Run the local training of one client."""
        algorithm, objective = self.algorithm, self.algorithm.objective
        params = _with_axis(task.start.params)
        buffers = tree_map(torch.clone, task.start.buffers)
        meters, steps = new_meters(1, self.device), 0
        stepping = replace(task, examples=no_examples)
        with torch.random.fork_rng(devices=[] if self.device.type == "cpu" else [self.device]):
            # Only dropout in user models uses torch's global generator, which is restored afterwards.
            torch.manual_seed(int(generator(self.training.seed, "dropout", round_number, client).integers(2**62)))
            with torch.no_grad():
                carry = checked(algorithm.begin(task), f"{type(algorithm).__name__}.begin")
                costs = objective.begin(task, task.state["objective"])
            for batch in self._batches(client, round_number):
                leaves = {name: tensor[0].detach().requires_grad_() for name, tensor in params.items()}
                outputs = self._module_network.train(leaves, buffers, batch.x[0])
                losses, costs = objective.loss(costs, outputs, batch)
                penalty = algorithm.penalty(stepping, carry, outputs, batch)
                loss = (losses if penalty is None else losses + penalty).mean(1)
                grads = torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True)
                with torch.no_grad():
                    stacked = {name: grad.unsqueeze(0) for name, grad in zip(leaves, grads, strict=True)}
                    params, carry = algorithm.step(stepping, carry, params, stacked)
                    meters, steps = meter(meters, loss), steps + 1
        result = LocalResult(params, _with_axis(buffers), torch.tensor([steps], device=self.device), costs)
        with torch.no_grad():
            state, upload = algorithm.end(task, carry, result)
        updates = self.updates([client], Model(result.params, result.buffers), upload, result.steps)
        checked(state, f"{type(algorithm).__name__}.end")
        return TrainedRound(updates, [{**state, "objective": objective.end(costs)}], meters)

    def _batches(self, client: int, round_number: int) -> Iterator[Batch]:
        """Yield the client's batches of a round; each epoch has a new order and may end with a smaller batch."""
        held, training = self.federation.indices(client), self.training
        epochs = training.epochs_of(client, round_number)
        order = batch_order(training.seed, round_number, client, len(held), epochs)
        crops = None
        if training.augment:
            drawn = crops_and_flips(training.seed, round_number, client, len(held), epochs, PAD)
            crops = torch.from_numpy(drawn).to(self.device)
        indices = torch.from_numpy(held[order]).to(self.device)
        for epoch in range(epochs):
            for first in range(0, len(held), training.batch_size):
                window = slice(first, first + training.batch_size)
                yield self.batch(
                    indices[epoch : epoch + 1, window], None if crops is None else crops[epoch, None, window]
                )

    def _one_pass(self, client: int) -> Iterator[Batch]:
        indices = torch.from_numpy(self.federation.indices(client)).to(self.device)
        return (self.batch(part.unsqueeze(0)) for part in torch.split(indices, self.training.batch_size))


def _with_axis(tree: Tree) -> Tree:
    return {name: tensor.unsqueeze(0) for name, tensor in tree.items()}
