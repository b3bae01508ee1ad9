"""One round of federated learning: the loop everyone reads first.

the server calls some clients                                    sample_clients
they train the received model on their own samples               engine.train
worker nodes evaluate each client's model (if weights need it)   engine.measure
the server weighs the clients and forms the next model           weigh, aggregate
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from fedsat.algorithms import Algorithm, Model, Server, Updates, Weighing
from fedsat.engine.local import TrainedRound
from fedsat.errors import TrainingError
from fedsat.metrics import Assessment, ClassCounts, ClientAccuracy
from fedsat.sampling import Indices, sample_clients, sample_workers
from fedsat.tree import State, nbytes


class Engine(Protocol):
    """What can train and evaluate the clients of a federation."""

    algorithm: Algorithm
    device: torch.device
    initial_model: Model

    @property
    def clients(self) -> int:
        """N, the clients of the federation."""

    @property
    def class_names(self) -> tuple[str, ...]:
        """The classes to be told apart."""

    def train(self, server: Server, clients: Indices, states: dict[int, State], round_number: int) -> TrainedRound:
        """Local training of the called clients; those who do not answer are missing from what it returns."""

    def measure(self, updates: Updates, workers: Indices) -> ClassCounts:
        """Each client's model evaluated by its workers, one row of nodes per client."""

    def assess(self, models: Sequence[Model], client_accuracy: ClientAccuracy) -> list[Assessment]:
        """Global models on the test set, and what each is worth to every client."""

    def traffic(self, server: Server, updates: Updates, counts: ClassCounts | None) -> Traffic:
        """The bytes that the round moved."""

    def remarks(self) -> dict[str, Any]:
        """What else the record of the round that ends now should say; asked once a round."""


@dataclass(frozen=True)
class Calls:
    """Who is called in a round: how many clients, how many workers for each, and the seed of the draw."""

    per_round: int
    workers: int
    seed: int


@dataclass
class Federated:
    """Where a federated training stands between rounds: complete, so that it can be put away and taken up again."""

    server: Server
    states: dict[int, State] = field(default_factory=dict)
    """What each client that ever took part keeps."""
    rounds: int = 0
    """Rounds played."""


@dataclass(frozen=True)
class Traffic:
    """Bytes that a round moves from the server to nodes and back; `workers` is the evaluation's part of both."""

    down: int
    up: int
    workers: int


@dataclass(frozen=True)
class PlayedRound:
    """What is known of a round after it was played."""

    number: int
    clients: Indices
    losses: Tensor
    weighing: Weighing
    traffic: Traffic
    seconds: dict[str, float]


def start(engine: Engine) -> Federated:
    """A federated training before its first round."""
    model = engine.initial_model
    return Federated(Server(model, engine.algorithm.initial_memory(model)))


def play_round(engine: Engine, training: Federated, calls: Calls) -> PlayedRound:
    """Play the next round and move `training` on; on an error it stays as it was."""
    algorithm, number = engine.algorithm, training.rounds + 1
    seconds: dict[str, float] = {}
    called = sample_clients(calls.seed, number, engine.clients, calls.per_round)

    with clocked(seconds, "train", engine.device):
        trained = engine.train(training.server, called, training.states, number)
    clients = trained.updates.clients.numpy()

    counts = None
    if algorithm.weighting.needs_counts:
        with clocked(seconds, "measure", engine.device):
            workers = sample_workers(calls.seed, number, engine.clients, called, calls.workers)
            counts = engine.measure(trained.updates, workers[np.isin(called, clients)])

    with clocked(seconds, "aggregate", engine.device):
        weighing = algorithm.weighting.weigh(trained.updates, counts)
        traffic = engine.traffic(training.server, trained.updates, counts)
        server = algorithm.aggregate(training.server, trained.updates, weighing.weights)
        check_server(server, number)

    training.server = server
    training.states.update(zip(clients.tolist(), trained.states, strict=True))
    training.rounds = number
    return PlayedRound(number, clients, trained.losses, weighing, traffic, seconds)


def check_server(server: Server, round_number: int) -> None:
    """Refuse an aggregate that is not finite, although everything the clients sent was."""
    trees = [server.model.params, server.model.buffers, *server.memory.values()]
    if not all(bool(torch.isfinite(tensor).all()) for tree in trees for tensor in tree.values()):
        raise TrainingError(f"round {round_number}: the aggregate is not finite; a smaller --lr or server_lr may help")


def count_traffic(algorithm: Algorithm, server: Server, updates: Updates, counts: ClassCounts | None) -> Traffic:
    """The bytes that a real federation would have moved in this round.

    Down go the model and what the method broadcasts, up the clients' models and uploads. A worker other than
    the client itself fetches the client's model; every worker sends three vectors of counts (8 bytes each).
    """
    clients = len(updates.sizes)
    model = nbytes([server.model.params, server.model.buffers])
    down = clients * (model + nbytes(algorithm.broadcast(server).values()))
    up = nbytes([updates.model.params, updates.model.buffers, *updates.uploads.values()])
    if counts is None:
        return Traffic(down, up, 0)
    _, workers, classes = counts.labels.shape
    fetched, reported = clients * (workers - 1) * model, clients * workers * 3 * classes * 8
    return Traffic(down + fetched, up + reported, fetched + reported)


@contextmanager
def clocked(seconds: dict[str, float], name: str, device: torch.device) -> Iterator[None]:
    """Add the time spent inside to `seconds[name]`, on a GPU until its work is done."""
    began = time.perf_counter()
    yield
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    seconds[name] = seconds.get(name, 0.0) + time.perf_counter() - began
