"""The sequential engine: clients one after another, step by step. The reference, and where to set a breakpoint."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn

from fedsat.algorithms import Algorithm, Batch, LocalResult, Model, Server, Task, Updates
from fedsat.data import Federation
from fedsat.engine.evaluate import count_and_loss
from fedsat.engine.examples import PAD, Examples
from fedsat.engine.local import LocalTraining, TrainedRound, check_finite
from fedsat.engine.network import ModuleNetwork, initial_weights
from fedsat.metrics import ClassCounts, Evaluation
from fedsat.sampling import Indices, batch_order, crops_and_flips, generator
from fedsat.tree import State, Tree, concatenate, tree_map


class SequentialEngine:
    """Trains and evaluates the clients of a federation one at a time."""

    def __init__(
        self,
        module: nn.Module,
        federation: Federation,
        algorithm: Algorithm,
        training: LocalTraining,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self.federation = federation
        self.algorithm = algorithm
        self.training = training
        self.device = device
        self.network = ModuleNetwork(module, algorithm.uses_features)
        self.initial_model = initial_weights(module, device, dtype)
        dataset = federation.dataset
        self.train_examples = Examples(dataset.train, dataset, device, dtype)
        self.test_examples = Examples(dataset.test, dataset, device, dtype)

    def train(self, server: Server, clients: Indices, states: dict[int, State], round_number: int) -> TrainedRound:
        """Local training of the called clients; `states` holds what earlier participants kept."""
        received = self.algorithm.broadcast(server)
        trained = []
        for client in clients.tolist():
            task = self._task(server.model, received, states.get(client), client)
            trained.append(self._train_client(task, client, round_number))
        results, buffers, new_states, uploads, losses = zip(*trained, strict=True)
        updates = Updates(
            clients=torch.from_numpy(clients),
            model=Model(concatenate([result.params for result in results]), concatenate(buffers)),
            uploads={name: concatenate([upload[name] for upload in uploads]) for name in uploads[0]},
            sizes=torch.from_numpy(self.federation.sizes[clients]).to(self.device),
            steps=torch.cat([result.steps for result in results]),
            lr=self.training.lr,
            epochs=self.training.epochs,
            population=self.federation.clients,
        )
        return TrainedRound(updates, list(new_states), torch.stack(losses))

    def measure(self, updates: Updates, workers: Indices) -> ClassCounts:
        """Each client's model evaluated by its workers (rows of `workers`) on their own samples."""
        counts = []
        for row, nodes in enumerate(workers):
            params = {name: tensor[row : row + 1] for name, tensor in updates.model.params.items()}
            buffers = {name: tensor[row : row + 1] for name, tensor in updates.model.buffers.items()}
            counts.append(self.count_by_node(Model(params, buffers), nodes))
        return ClassCounts.from_confusion(torch.stack(counts))

    def count_by_node(self, model: Model, nodes: Indices) -> Tensor:
        """Confusion matrices of one model (client axis of length one) on each node's samples, [nodes, m, m]."""
        held = [self.federation.indices(node) for node in nodes.tolist()]
        owners = np.repeat(np.arange(len(nodes)), [len(indices) for indices in held])
        counts, _ = count_and_loss(
            self.network,
            model,
            self.train_examples,
            torch.from_numpy(np.concatenate(held)).to(self.device),
            torch.from_numpy(owners).to(self.device),
            self.federation.dataset.classes,
        )
        return counts

    def evaluate(self, model: Model) -> Evaluation:
        """The global model on the test set."""
        stacked = Model(_with_axis(model.params), _with_axis(model.buffers))
        indices = torch.arange(len(self.test_examples), device=self.device)
        counts, loss = count_and_loss(
            self.network,
            stacked,
            self.test_examples,
            indices,
            torch.zeros_like(indices),
            self.federation.dataset.classes,
        )
        return Evaluation(counts[0].cpu().numpy(), loss)

    def _task(self, start: Model, received: State, state: State | None, client: int) -> Task:
        if state is None:
            kept = {
                **self.algorithm.initial_client_state(start),
                "objective": self.algorithm.objective.initial_state(self.federation.dataset.classes),
            }
            state = {name: _with_axis(tree) for name, tree in kept.items()}
        return Task(
            start=start,
            received=received,
            state=state,
            class_counts=torch.from_numpy(self.federation.class_counts[[client]]).to(self.device),
            lr=self.training.lr,
            epochs=self.training.epochs,
            network=self.network,
            examples=lambda: self._one_pass(client),
        )

    def _train_client(
        self, task: Task, client: int, round_number: int
    ) -> tuple[LocalResult, Tree, State, State, Tensor]:
        """One local round: the client's model, buffers, new state, upload and mean loss."""
        algorithm, objective = self.algorithm, self.algorithm.objective
        params = _with_axis(task.start.params)
        buffers = tree_map(torch.clone, task.start.buffers)
        losses = []
        with torch.random.fork_rng(devices=[] if self.device.type == "cpu" else [self.device]):
            # Only a user's dropout draws from torch's global generator, which is put back as it was.
            torch.manual_seed(int(generator(self.training.seed, "dropout", round_number, client).integers(2**62)))
            with torch.no_grad():
                carry = algorithm.begin(task)
                costs = objective.begin(task, task.state["objective"])
            for batch in self._batches(client, round_number):
                leaves = {name: tensor[0].detach().requires_grad_() for name, tensor in params.items()}
                outputs = self.network.train(leaves, buffers, batch.x[0])
                sample_losses, costs = objective.loss(costs, outputs, batch)
                penalty = algorithm.penalty(task, carry, outputs, batch)
                loss = (sample_losses if penalty is None else sample_losses + penalty).mean()
                grads = torch.autograd.grad(loss, list(leaves.values()))
                losses.append(loss.detach())
                with torch.no_grad():
                    stacked = {name: grad.unsqueeze(0) for name, grad in zip(leaves, grads, strict=True)}
                    params, carry = algorithm.step(task, carry, params, stacked)
        check_finite(torch.stack(losses), params, client, round_number, task.lr)
        result = LocalResult(params, torch.tensor([len(losses)], device=self.device))
        with torch.no_grad():
            state, upload = algorithm.end(task, carry, result)
        state = {**state, "objective": objective.end(costs)}
        return result, _with_axis(buffers), state, upload, torch.stack(losses).mean()

    def _batches(self, client: int, round_number: int) -> Iterator[Batch]:
        """The client's batches of a round: every epoch a new order, the last batch of an epoch as small as it is."""
        held, training = self.federation.indices(client), self.training
        order = batch_order(training.seed, round_number, client, len(held), training.epochs)
        crops = None
        if training.augment:
            drawn = crops_and_flips(training.seed, round_number, client, len(held), training.epochs, PAD)
            crops = torch.from_numpy(drawn).to(self.device)
        indices = torch.from_numpy(held[order]).to(self.device)
        for epoch in range(training.epochs):
            for first in range(0, len(held), training.batch_size):
                window = slice(first, first + training.batch_size)
                yield self._batch(indices[epoch, window], None if crops is None else crops[epoch, window])

    def _one_pass(self, client: int) -> Iterator[Batch]:
        indices = torch.from_numpy(self.federation.indices(client)).to(self.device)
        return (self._batch(part) for part in torch.split(indices, self.training.batch_size))

    def _batch(self, indices: Tensor, crops: Tensor | None = None) -> Batch:
        labels = self.train_examples.labels[indices]
        x = self.train_examples.inputs(indices, crops)
        return Batch(x.unsqueeze(0), labels.unsqueeze(0), torch.ones_like(labels, dtype=torch.bool).unsqueeze(0))


def _with_axis(tree: Tree) -> Tree:
    return {name: tensor.unsqueeze(0) for name, tensor in tree.items()}
