"""One round of federated learning: the loop everyone reads first.

the server calls some clients, some of which do not answer       sample_clients, which_respond
they train the received model on their own samples               engine.train
(some of them may send something else)                           attack.send
the server refuses what cannot be averaged                       refuse_updates
worker nodes evaluate each client's model (if weights need it)   engine.evaluate_workers, attack.report, refuse_reports
the server weighs the clients and forms the next model           weigh, select, aggregate
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from fedsat.algorithms import Algorithm, ClientWeights, Model, Server, Updates
from fedsat.algorithms.base import client_updates
from fedsat.errors import TrainingError
from fedsat.metrics import Assessment, ClassCounts, ClientAccuracy
from fedsat.rounds.attacks import Attack
from fedsat.rounds.local import TrainedRound
from fedsat.rounds.refusal import Refused, refuse_reports, refuse_updates
from fedsat.rounds.sampling import sample_clients, sample_workers, which_respond, which_workers_respond
from fedsat.seeding import Indices
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

    def evaluate_workers(self, updates: Updates, workers: Indices) -> ClassCounts:
        """Each client's model evaluated by its workers, one row of nodes per client."""

    def evaluate(self, models: Sequence[Model], client_accuracy: ClientAccuracy) -> list[Assessment]:
        """Global models on the test set, and what each is worth to every client."""

    def traffic(
        self, server: Server, called: int, answered: int, updates: Updates, counts: ClassCounts | None
    ) -> Traffic:
        """The bytes that the round moved; `updates` are those that were used."""

    def notes(self) -> dict[str, Any]:
        """What else the record of the round that ends now should say; asked once a round."""


@dataclass(frozen=True)
class Sampling:
    """Who is called in a round: how many clients, how many workers for each, and the seed of the draw."""

    per_round: int
    workers: int
    seed: int


@dataclass(frozen=True)
class Faults:
    """What goes wrong in a federation, and when the server refuses an update; as it stands, nothing goes wrong."""

    dropout: float = 0.0
    """Probability that a called client or worker does not answer."""
    max_norm: float = 0.0
    """An update longer than this many medians of its round is refused; 0: none is for its length."""
    attack: Attack = Attack()
    attackers: Indices = field(default_factory=lambda: np.empty(0, dtype=np.int64))


NO_FAULTS = Faults()


@dataclass
class FederationState:
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
class RoundResult:
    """What is known of a round after it was played."""

    number: int
    clients: Indices
    """Those whose updates were weighed, in the order of their weights."""
    losses: Tensor
    client_weights: ClientWeights
    traffic: Traffic
    seconds: dict[str, float]
    missing: tuple[int, ...] = ()
    """Called clients that did not answer. If none did, the round was skipped and the model stayed as it was."""
    refused: Refused = field(default_factory=dict)
    """Clients whose updates were refused, and why."""
    refused_workers: Refused = field(default_factory=dict)
    """Workers whose reports were refused, and why."""


def start(engine: Engine) -> FederationState:
    """A federated training before its first round."""
    model = engine.initial_model
    return FederationState(Server(model, engine.algorithm.initial_memory(model)))


def run_round(engine: Engine, training: FederationState, calls: Sampling, faults: Faults = NO_FAULTS) -> RoundResult:
    """Play the next round and move `training` on; on an error it stays as it was."""
    algorithm, server, number = engine.algorithm, training.server, training.rounds + 1
    seconds: dict[str, float] = {}
    called = sample_clients(calls.seed, number, engine.clients, calls.per_round)
    answer = which_respond(calls.seed, number, called, faults.dropout)
    if not answer.any():
        training.rounds = number
        return skipped_round(number, called, count_down(algorithm, server, len(called)))

    with timed(seconds, "train", engine.device):
        trained = engine.train(server, called[answer], training.states, number)
        answered = trained.updates.clients.numpy()
        sent = faults.attack.send(server.model, trained.updates, faults.attackers, calls.seed, number)
        trained, refused = refuse_updates(replace(trained, updates=sent), server.model, faults.max_norm, number)
        updates, clients = trained.updates, trained.updates.clients.numpy()

    counts: ClassCounts | None = None
    refused_workers: Refused = {}
    if algorithm.weighting.needs_counts:
        with timed(seconds, "evaluate_workers", engine.device):
            workers = sample_workers(calls.seed, number, engine.clients, called, calls.workers)
            counts = evaluate_by_workers(engine, updates, workers[np.isin(called, clients)], calls.seed, number, faults)
            counts, refused_workers = refuse_reports(counts)

    with timed(seconds, "aggregate", engine.device):
        client_weights = weigh(algorithm, server, updates, counts)
        traffic = engine.traffic(server, len(called), len(answered), updates, counts)
        server = algorithm.aggregate(server, updates, client_weights.weights)
        check_server(server, number)

    training.server = server
    training.states.update(zip(clients.tolist(), trained.states, strict=True))
    training.rounds = number
    missing = tuple(called[~np.isin(called, answered)].tolist())
    return RoundResult(
        number, clients, trained.losses, client_weights, traffic, seconds, missing, refused, refused_workers
    )


def skipped_round(number: int, called: Indices, down: int) -> RoundResult:
    """A round that nobody answered."""
    nobody = torch.zeros(0)
    return RoundResult(
        number, called[:0], nobody, ClientWeights(nobody), Traffic(down, 0, 0), {}, tuple(called.tolist())
    )


def evaluate_by_workers(
    engine: Engine, updates: Updates, workers: Indices, seed: int, number: int, faults: Faults
) -> ClassCounts:
    """What the workers report on the clients' models; zeros where one does not answer."""
    clients, nodes = updates.clients.numpy(), torch.from_numpy(workers).to(engine.device)
    counts = faults.attack.report(engine.evaluate_workers(updates, workers), clients, workers, faults.attackers)
    silent = ~which_workers_respond(seed, number, workers, faults.dropout)
    return replace(counts.without(torch.from_numpy(silent).to(engine.device)), workers=nodes)


def weigh(algorithm: Algorithm, server: Server, updates: Updates, counts: ClassCounts | None) -> ClientWeights:
    """How much each update counts: by the method's weighting, and by its aggregator if that looks at updates."""
    client_weights, aggregator = algorithm.weighting.weigh(updates, counts), algorithm.aggregator
    if not aggregator.selects:
        return client_weights
    return replace(
        client_weights, weights=aggregator.select(client_updates(server.model, updates), client_weights.weights)
    )


def check_server(server: Server, round_number: int) -> None:
    """Refuse an aggregate that is not finite, although everything the clients sent was."""
    trees = [server.model.params, server.model.buffers, *server.memory.values()]
    if not all(bool(torch.isfinite(tensor).all()) for tree in trees for tensor in tree.values()):
        raise TrainingError(f"round {round_number}: the aggregate is not finite; a smaller --lr or server_lr may help")


def count_traffic(
    algorithm: Algorithm, server: Server, called: int, answered: int, updates: Updates, counts: ClassCounts | None
) -> Traffic:
    """The bytes that a real federation would have moved in this round.

    Down go the model and what the method broadcasts, up the models and uploads of those who answered. A worker
    other than the client itself fetches the client's model; it sends three vectors of counts (8 bytes each) if it
    answers.
    """
    down = count_down(algorithm, server, called)
    received = nbytes([updates.model.params, updates.model.buffers, *updates.uploads.values()])
    up = answered * received // len(updates.sizes)  # what was refused had been sent
    if counts is None:
        return Traffic(down, up, 0)
    clients, workers, classes = counts.labels.shape
    fetched = clients * (workers - 1) * nbytes([server.model.params, server.model.buffers])
    reported = int(counts.labels.any(-1).sum()) * 3 * classes * 8
    return Traffic(down + fetched, up + reported, fetched + reported)


def count_down(algorithm: Algorithm, server: Server, called: int) -> int:
    """Bytes of the model and of what the method broadcasts, for every called client."""
    return called * nbytes([server.model.params, server.model.buffers, *algorithm.broadcast(server).values()])


@contextmanager
def timed(seconds: dict[str, float], name: str, device: torch.device) -> Iterator[None]:
    """Add the time spent inside to `seconds[name]`, on a GPU until its work is done."""
    began = time.perf_counter()
    yield
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    seconds[name] = seconds.get(name, 0.0) + time.perf_counter() - began
