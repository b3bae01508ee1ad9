"""Common parts of all engines: data on the device, batches, and evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedsat.algorithms import Algorithm, Batch, Model, Network, Server, Task, Updates
from fedsat.algorithms.weighting import with_statement
from fedsat.data import Federation
from fedsat.data.splits import divide_among_clients
from fedsat.engine.capacity import evaluation_batch
from fedsat.engine.evaluate import Counter, Tally
from fedsat.engine.examples import Examples
from fedsat.engine.network import initial_weights
from fedsat.errors import UsageError
from fedsat.metrics import NO_DETAIL, ClassCounts, ClientAccuracy, Detail, Evaluation, accuracy_by_client
from fedsat.rounds.local import LocalTraining
from fedsat.rounds.noise import seeded
from fedsat.rounds.privacy import Protection
from fedsat.rounds.round import Traffic, count_traffic, with_masks
from fedsat.rounds.secure import weighs_alone
from fedsat.seeding import Indices
from fedsat.tree import State, Tree, expand, tree_map


def tuned_kernels() -> AbstractContextManager[None]:
    """Let cuDNN choose the fastest kernel for each new shape, because a run has few shapes and repeats them often."""
    cudnn = torch.backends.cudnn
    return cudnn.flags(enabled=True, benchmark=True, deterministic=cudnn.deterministic, allow_tf32=cudnn.allow_tf32)


def sent(values: NDArray[Any], device: torch.device) -> Tensor:
    """Return the values on the device. A GPU goes on with its work meanwhile, and the host does not wait for it."""
    if device.type != "cuda":
        return torch.from_numpy(values).to(device)
    return torch.from_numpy(values).pin_memory().to(device, non_blocking=True)


def take_step(algorithm: Algorithm, task: Task, carry: State, params: Tree, grads: Tree) -> tuple[Tree, State]:
    """Take a method's step, and check that it returns everything that is carried, including the optimizer's part."""
    params, after = algorithm.step(task, carry, params, grads)
    if after.keys() != carry.keys():
        name = type(algorithm).__name__
        raise UsageError(f"{name}.step returned the carry {sorted(after)}, but it was given {sorted(carry)}")
    return params, after


class BaseEngine:
    """A federation's data on a device, and a network to evaluate on it."""

    def __init__(
        self,
        network: Network,
        module: nn.Module,
        federation: Federation,
        algorithm: Algorithm,
        training: LocalTraining,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self.network = network
        self.federation = federation
        self.algorithm = algorithm
        self.training = training
        self.device = device
        self.protection = Protection(training.privacy, seeded(training.seed), secure=training.secure_aggregation)
        """On real nodes, with secure noise."""
        self.class_mixes = federation.reported_mixes
        """Class counts for the accuracies of the clients; a label attack does not change them."""
        self.mean_samples = len(federation.order) / federation.clients
        """n/N; a node, which knows only its own samples, gets it from the server."""
        self.initial_model = initial_weights(module, device, dtype)
        dataset = federation.dataset
        compiles = getattr(network, "compiler", None) is not None
        self.train_examples = Examples(dataset.train, dataset, device, dtype, compiles=compiles)
        self.test_examples = Examples(dataset.test, dataset, device, dtype, compiles=compiles)
        self.train_counter = self.counter(self.train_examples, module)
        self.test_counter = self.counter(self.test_examples, module)

    def counter(self, examples: Examples, module: nn.Module) -> Counter:
        """Return the counter that evaluates models on the given examples."""
        shape, classes = self.federation.dataset.input_shape, self.federation.dataset.classes
        compiled = getattr(self.network, "compiler", None) is not None
        return Counter(self.network, examples, classes, evaluation_batch(module, shape, self.device, compiled=compiled))

    def share_examples(self, other: BaseEngine) -> None:
        """Share the other engine's samples and their evaluation, where both engines have the same samples."""
        if self.train_examples.equal(other.train_examples):
            self.train_examples, self.train_counter = other.train_examples, other.train_counter
        if self.test_examples.equal(other.test_examples):
            self.test_examples, self.test_counter = other.test_examples, other.test_counter

    @property
    def clients(self) -> int:
        """N, the number of clients."""
        return self.federation.clients

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of the classes."""
        return self.federation.dataset.class_names

    def on_device(self, tree: Tree) -> Tree:
        """Return the tree on the engine's device."""
        return tree_map(lambda tensor: tensor.to(self.device), tree)

    def batch(self, rows: Tensor, crops: Tensor | None = None) -> Batch:
        """Return one batch of every client from sample indices [C, B]; padding is encoded as ~index."""
        real = rows >= 0
        indices = torch.where(real, rows, ~rows).t()
        drawn = None if crops is None else crops.transpose(0, 1).reshape(-1, 3)
        x = self.train_examples.inputs(indices.reshape(-1), drawn)
        x = x.view(*indices.shape, *x.shape[1:])
        return Batch(x.transpose(0, 1), self.train_examples.labels[indices].t(), real)

    def updates(self, clients: Sequence[int], model: Model, uploads: State, steps: Tensor, lr: float) -> Updates:
        """Combine the clients' results with what the server knows about the clients and the round."""
        counts = sent(self.federation.class_counts[list(clients)], self.device)
        return Updates(
            clients=torch.tensor(clients),
            model=model,
            uploads=with_statement(uploads, self.algorithm.weighting, counts),
            sizes=sent(self.federation.sizes[list(clients)], self.device),
            steps=steps,
            lr=lr,
            epochs=self.training.epochs,
            population=self.federation.clients,
            optimizer=self.training.optimizer,
        )

    def evaluate_workers(self, updates: Updates, workers: Indices) -> ClassCounts:
        """Evaluate each client's model on its workers' samples; `workers` has one row of nodes per client."""
        counts = []
        for row, nodes in enumerate(workers):
            params = {name: tensor[row : row + 1] for name, tensor in updates.model.params.items()}
            buffers = {name: tensor[row : row + 1] for name, tensor in updates.model.buffers.items()}
            counts.append(self.count_by_node(Model(params, buffers), self.held_by_workers(nodes)))
        return ClassCounts.from_confusion(torch.stack(counts))

    def held_by_workers(self, nodes: Indices) -> list[Indices]:
        """Return the samples on which each of these nodes evaluates models as a worker."""
        privacy, seed = self.protection.privacy, self.training.seed
        return [privacy.judged(self.federation.judging_indices(node), seed, node) for node in nodes.tolist()]

    def count_by_node(self, model: Model, held: Sequence[Indices]) -> Tensor:
        """Return confusion matrices of one model (client axis of length one) on each node's samples, [nodes, m, m]."""
        indices, owners = self.joined(held)
        with tuned_kernels():
            return self.train_counter.count(model, indices, owners, len(held)).counts

    def joined(self, held: Sequence[Indices]) -> tuple[Tensor, Tensor]:
        """Return the indices of all nodes' samples, and the position of the node that holds each."""
        owners = np.repeat(np.arange(len(held)), [len(indices) for indices in held])
        return sent(np.concatenate(held), self.device), sent(owners, self.device)

    @cached_property
    def test_owners(self) -> Indices:
        """The client of each test sample if the test set is divided among the clients, N for samples of no client."""
        return divide_among_clients(self.federation.dataset.test.labels, self.class_mixes, self.training.seed)

    def test(self, model: Model, detail: Detail = NO_DETAIL) -> Evaluation:
        """Evaluate the global model on the test set."""
        with tuned_kernels():
            return self.test_counter.evaluate(model, detail=detail)

    def evaluate(
        self, models: Sequence[Model], client_accuracy: ClientAccuracy, detail: Detail = NO_DETAIL
    ) -> list[Evaluation]:
        """Evaluate global models on the test set and compute every client's accuracy with each."""
        return [self._evaluate_model(model, client_accuracy, detail) for model in models]

    def _evaluate_model(self, model: Model, client_accuracy: ClientAccuracy, detail: Detail) -> Evaluation:
        if client_accuracy == "test-split":
            with tuned_kernels():
                return self.test_counter.evaluate(model, self.test_owners, self.clients, detail)
        evaluation = self.test(model, detail)
        if client_accuracy == "expected":
            accuracies = evaluation.expected_client_accuracy(self.class_mixes)
            return replace(evaluation, client_accuracies=accuracies, class_mixes=self.class_mixes)
        own = self.evaluate_local(model, Detail(client_scores=detail.client_scores))
        found = {name: getattr(own, name) for name in ("client_accuracies", "client_confusion", "client_histograms")}
        return replace(evaluation, **found)

    def evaluate_local(self, model: Model, detail: Detail = NO_DETAIL) -> Evaluation:
        """Evaluate the global model on the clients' training samples, without the classes that they do not report."""
        return self._evaluate_held(model, [self.federation.shown_indices(k) for k in range(self.clients)], detail)

    def validate(self, model: Model, detail: Detail = NO_DETAIL) -> Evaluation:
        """Evaluate the global model on the clients' validation samples."""
        return self._evaluate_held(model, [self.federation.reported_indices(k) for k in range(self.clients)], detail)

    def _evaluate_held(self, model: Model, held: Sequence[Indices], detail: Detail) -> Evaluation:
        """Evaluate the global model on each client's own samples, and on all of them together."""
        tally = self._tally(model, held, len(held) if detail.client_scores else int(detail.scores))
        counts = tally.counts.cpu().numpy()
        scores = None if tally.scores is None else tally.scores.cpu().numpy()
        alone, indices = Model(expand(model.params, 1), expand(model.buffers, 1)), self.joined(held)[0]
        return Evaluation(
            counts.sum(axis=0),
            tally.mean_loss,
            accuracy_by_client(counts),
            lambda: self.train_counter.predict(alone, indices),
            histograms=None if scores is None else scores.sum(axis=0),
            client_confusion=counts,
            client_histograms=scores if detail.client_scores else None,
        )

    def _tally(self, model: Model, held: Sequence[Indices], scored: int) -> Tally:
        """Count a model's predictions on each client's samples, and the scores as `Counter.count` does."""
        indices, owners = self.joined(held)
        alone = Model(expand(model.params, 1), expand(model.buffers, 1))
        with tuned_kernels():
            return self.train_counter.count(alone, indices, owners, len(held), scored)

    def traffic(
        self, server: Server, sampled: int, responded: int, updates: Updates, counts: ClassCounts | None
    ) -> Traffic:
        """Return the bytes that a real federation would send."""
        found = count_traffic(self.algorithm, server, sampled, responded, updates, counts)
        if not self.protection.secure:
            return found
        return with_masks(found, updates, sampled, responded, scales=weighs_alone(self.algorithm.weighting))

    def notes(self) -> dict[str, Any]:
        """Return nothing: the round itself records which clients did not respond."""
        return {}

    def remembered(self) -> dict[str, Any]:
        """Return nothing: this engine is the same whenever it is built."""
        return {}
