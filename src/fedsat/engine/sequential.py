"""The sequential engine: trains one client after another. It is the reference, and convenient for debugging."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice, product

import torch
from torch import Tensor, nn

from fedsat.algorithms import Algorithm, Batch, LocalResult, Model, Server, Task
from fedsat.algorithms.base import checked, no_examples, sample_losses
from fedsat.data import Federation
from fedsat.engine.base import BaseEngine, take_step
from fedsat.engine.examples import PAD
from fedsat.engine.network import ModuleNetwork
from fedsat.rounds.local import LocalTraining, TrainedRound, meter, new_meters
from fedsat.rounds.sampling import batch_order, crops_and_flips
from fedsat.seeding import Indices, generator
from fedsat.tree import KeptState, KeptStates, State, Tree, add, tree_map


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

    def train(self, server: Server, clients: Indices, states: KeptStates, round_number: int) -> TrainedRound:
        """Train the sampled clients; `states` holds the states of earlier participants."""
        return self.train_from(server.model, self.algorithm.broadcast(server), clients, states, round_number)

    def train_from(
        self, model: Model, received: State, clients: Indices, states: KeptStates, round_number: int
    ) -> TrainedRound:
        """Train from what a client receives: the model and what the method broadcasts."""
        trained = []
        for client in clients.tolist():
            task = self._task(model, received, states.get(client), client, self.training.lr_in(round_number))
            trained.append(self._train_client(task, client, round_number))
        return TrainedRound.of(trained)

    def _task(self, start: Model, received: State, state: KeptState | None, client: int, lr: float) -> Task:
        if state is None:
            kept = {
                **self.algorithm.initial_client_state(start),
                "objective": self.algorithm.objective.initial_state(self.federation.dataset.classes),
            }
            state = {name: _with_axis(self.on_device(tree)) for name, tree in kept.items()}
        return Task(
            start=start,
            received=received,
            state=dict(state),
            class_counts=torch.from_numpy(self.federation.class_counts[[client]]).to(self.device),
            mean_samples=self.mean_samples,
            lr=lr,
            epochs=self.training.epochs,
            network=self.network,
            examples=lambda: self._one_pass(client),
            optimizer=self.training.optimizer,
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
                begun = checked(algorithm.begin(task), f"{type(algorithm).__name__}.begin")
                carry = {**begun, **task.optimizer.begin(params)}
                costs = objective.begin(task, task.state["objective"])
            for batch in self._batches(client, round_number):
                grads, loss, costs = self._batch_gradient(stepping, carry, costs, params, buffers, batch)
                with torch.no_grad():
                    params, carry = take_step(algorithm, stepping, carry, params, grads)
                    meters, steps = meter(meters, loss), steps + 1
        result = LocalResult(params, _with_axis(buffers), torch.tensor([steps], device=self.device), costs)
        with torch.no_grad():
            finish = self.protection.finish
            sent, state, upload = finish(algorithm, task, carry, result, [client], round_number)
        lr = self.training.lr_in(round_number)
        updates = self.updates([client], Model(sent, result.buffers), upload, result.steps, lr)
        checked(state, f"{type(algorithm).__name__}.end")
        return TrainedRound(updates, [{**state, "objective": objective.end(costs)}], meters)

    def _batch_gradient(
        self, task: Task, carry: State, costs: Tree, params: Tree, buffers: Tree, batch: Batch
    ) -> tuple[Tree, Tensor, Tree]:
        """Return the gradient of a batch at θ, or θ + ε for a method with a perturbation, its loss, and the costs."""

        def gradient_at(point: Tree, buffers: Tree) -> tuple[Tree, Tensor, Tree]:
            leaves = {name: tensor[0].detach().requires_grad_() for name, tensor in point.items()}
            outputs = self._module_network.train(leaves, buffers, batch.x[0])
            losses, after = sample_losses(self.algorithm, task, carry, costs, outputs, batch)
            loss = losses.mean(1)
            grads = torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True)
            return {name: grad.unsqueeze(0) for name, grad in zip(leaves, grads, strict=True)}, loss, after

        @torch.enable_grad()
        def gradient() -> Tree:
            return gradient_at(params, tree_map(torch.clone, buffers))[0]

        with torch.no_grad():
            perturbation = self.algorithm.perturbation(task, carry, params, gradient)
        return gradient_at(params if perturbation is None else add(params, perturbation), buffers)

    def _batches(self, client: int, round_number: int) -> Iterator[Batch]:
        """Yield the client's batches of a round; each epoch has a new order and may end with a smaller batch."""
        held, training = self.federation.indices(client), self.training
        epochs, steps = training.work_of(client, round_number, len(held))
        order = batch_order(training.seed, round_number, client, len(held), epochs)
        crops = None
        if training.augment:
            drawn = crops_and_flips(training.seed, round_number, client, len(held), epochs, PAD)
            crops = torch.from_numpy(drawn).to(self.device)
        indices = torch.from_numpy(held[order]).to(self.device)
        size = training.batch_of(len(held))
        for epoch, first in islice(product(range(epochs), range(0, len(held), size)), steps):
            window = slice(first, first + size)
            yield self.batch(indices[epoch : epoch + 1, window], None if crops is None else crops[epoch, None, window])

    def _one_pass(self, client: int) -> Iterator[Batch]:
        indices = torch.from_numpy(self.federation.indices(client)).to(self.device)
        return (self.batch(part.unsqueeze(0)) for part in torch.split(indices, self.training.batch_of(len(indices))))


def _with_axis(tree: Tree) -> Tree:
    return {name: tensor.unsqueeze(0) for name, tensor in tree.items()}
