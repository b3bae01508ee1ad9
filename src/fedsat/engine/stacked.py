"""The stacked engine: trains all clients of a round at once on a CPU or a GPU.

It computes the same results as the sequential engine. Clients are placed in lanes (see `lanes`). Their weights are
stacked and the network is folded (see `fold`), so a step of many clients costs little more than a step of one.
"""

from __future__ import annotations

import torch
from torch import nn

from fedsat.algorithms import Algorithm, Server, Updates
from fedsat.data import Federation
from fedsat.engine.base import BaseEngine, tuned_kernels
from fedsat.engine.capacity import lanes_that_fit, runs_that_pay
from fedsat.engine.evaluate import Counter, GraphedCounter
from fedsat.engine.examples import Examples
from fedsat.engine.fold import FoldedNetwork
from fedsat.engine.network import draws_random_numbers
from fedsat.engine.plan import StackedNetwork
from fedsat.engine.stack import Stack
from fedsat.engine.threads import ThreadChoice
from fedsat.metrics import ClassCounts
from fedsat.rounds.local import LocalTraining, Request, TrainedRound
from fedsat.seeding import Indices
from fedsat.tree import KeptStates


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
        self.stacked, self._module = network, module
        largest = training.batch_of(int(federation.sizes.max()))
        fitting = lanes_that_fit(module, federation.dataset.input_shape, largest, device)
        self.lanes = lanes or fitting
        self.compiler = network.compiler
        self.threads = ThreadChoice(module)
        self.alone = Stack([self])
        self.ahead: tuple[Request, TrainedRound] | None = None
        """The next round's request and its result, if a stack has trained it together with other runs."""

    def counter(self, examples: Examples, module: nn.Module) -> Counter:
        """Return the counter that evaluates models on the given examples; it uses CUDA graphs on a GPU."""
        plain = super().counter(examples, module)
        if self.device.type != "cuda":
            return plain
        network, shape = self.network, self.federation.dataset.input_shape
        fused = network.fused(shape) if isinstance(network, FoldedNetwork) else None
        return GraphedCounter(network, examples, plain.classes, plain.batch, fused)

    def evaluate_workers(self, updates: Updates, workers: Indices) -> ClassCounts:
        """Evaluate each client's model on its workers' samples; on a CPU, several models at once."""
        samples, owners = zip(*(self.joined(self.held_by_workers(nodes)) for nodes in workers), strict=True)
        with tuned_kernels(), self.threads.applied():
            counts = self.train_counter.count_each(updates.model, samples, owners, workers.shape[1])
        return ClassCounts.from_confusion(counts)

    def runs_at_once(self, clients: int) -> int:
        """Return how many runs like this, with so many clients in a round, are worth training in one stack."""
        if draws_random_numbers(self._module, self.federation.dataset.input_shape):
            return 1  # the runs would share one sequence of numbers
        weights = sum(tensor.numel() for tensor in self.initial_model.params.values())
        compiled = self.compiler is not None
        return runs_that_pay(self.lanes, clients, weights, self.device, compiled=compiled)

    def train(self, server: Server, clients: Indices, states: KeptStates, round_number: int) -> TrainedRound:
        """Train the sampled clients at once, unless a stack of several runs has done it already."""
        request = Request(server, clients, states, round_number)
        ahead, self.ahead = self.ahead, None
        if ahead is not None and ahead[0].equals(request):
            return ahead[1]
        return self.alone.train([request])[0]
