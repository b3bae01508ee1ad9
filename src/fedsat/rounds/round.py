"""One round of federated learning.

the server samples clients, some of which do not respond         clients_of_round
clients train the received model on their samples                engine.train
attackers replace their updates                                  attack.send
the server refuses updates that cannot be averaged               refuse_updates
workers evaluate each client's model (if the weighting needs it) engine.evaluate_workers, attack.report, refuse_reports
the server computes weights and the next global model            weigh, select, release, aggregate
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
from fedsat.errors import SkippedRoundError, TrainingError
from fedsat.metrics import NO_DETAIL, ClassCounts, ClientAccuracy, Detail, Evaluation
from fedsat.rounds.attacks import Attack
from fedsat.rounds.local import TrainedRound
from fedsat.rounds.privacy import Protection
from fedsat.rounds.refusal import Refused, refuse_reports, refuse_too_large, refuse_updates
from fedsat.rounds.sampling import sample_clients, sample_workers, which_respond, which_workers_respond
from fedsat.rounds.secure import keys_down, keys_up, length, weighs_alone
from fedsat.seeding import Indices
from fedsat.tree import KeptStates, expand, finite, nbytes


class Engine(Protocol):
    """Trains and evaluates the clients of a federation."""

    algorithm: Algorithm
    device: torch.device
    initial_model: Model
    protection: Protection

    @property
    def clients(self) -> int:
        """N, the number of clients."""

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of the classes."""

    def train(self, server: Server, clients: Indices, states: KeptStates, round_number: int) -> TrainedRound:
        """Train the sampled clients; the result omits those that do not respond.

        A `SkippedRoundError` ends the round without a result.
        """

    def evaluate_workers(self, updates: Updates, workers: Indices) -> ClassCounts:
        """Evaluate each client's model on its workers' samples; `workers` has one row of nodes per client."""

    def evaluate(
        self, models: Sequence[Model], client_accuracy: ClientAccuracy, detail: Detail = NO_DETAIL
    ) -> list[Evaluation]:
        """Evaluate global models on the test set and compute every client's accuracy; `detail` is counted as well."""

    def validate(self, model: Model, detail: Detail = NO_DETAIL) -> Evaluation | None:
        """Evaluate a global model on the clients' validation samples; None if no client responded."""

    def traffic(
        self, server: Server, sampled: int, responded: int, updates: Updates, counts: ClassCounts | None
    ) -> Traffic:
        """Return the bytes sent in the round; `updates` are those that were used."""

    def notes(self) -> dict[str, Any]:
        """Return further entries for the record of the current round; called once per round."""

    def remembered(self) -> dict[str, Any]:
        """Return what a checkpoint must store of the engine, as plain values: what the server knows of real nodes."""


@dataclass(frozen=True)
class Sampling:
    """How many clients are sampled per round, how many workers per client, and the seed."""

    per_round: int
    workers: int
    seed: int


@dataclass(frozen=True)
class Faults:
    """Simulated faults, and when the server refuses an update. By default, there are no faults."""

    dropout: float = 0.0
    """Probability that a sampled client or worker does not respond."""
    max_norm: float = 0.0
    """Refuse updates longer than this many times the round's median; 0: no limit."""
    attack: Attack = Attack()
    attackers: Indices = field(default_factory=lambda: np.empty(0, dtype=np.int64))


NO_FAULTS = Faults()


@dataclass
class FederationState:
    """The complete state of a federated training between rounds, as stored in a checkpoint."""

    server: Server
    states: KeptStates = field(default_factory=dict)
    """The state of each client that has participated."""
    rounds: int = 0
    """Number of completed rounds."""


@dataclass(frozen=True)
class Traffic:
    """Bytes that a round sends to nodes and back; `workers` is the share of the evaluation in both."""

    down: int
    up: int
    workers: int


@dataclass(frozen=True)
class RoundResult:
    """The result of a round."""

    number: int
    clients: Indices
    """The clients whose updates were aggregated, in the order of their weights."""
    losses: Tensor
    client_weights: ClientWeights
    traffic: Traffic
    seconds: dict[str, float]
    lr: float | None = None
    """η_t, the local learning rate; None if no client responded."""
    missing: tuple[int, ...] = ()
    """Sampled clients that did not respond. If none did, or too few for secure aggregation, the round was skipped and
    the model did not change."""
    refused: Refused = field(default_factory=dict)
    """Clients whose updates were refused, with the reasons."""
    refused_workers: Refused = field(default_factory=dict)
    """Workers whose reports were refused, with the reasons."""


def start(engine: Engine) -> FederationState:
    """Return the state before the first round."""
    model = engine.initial_model
    return FederationState(Server(model, engine.algorithm.initial_memory(model)))


def run_round(engine: Engine, training: FederationState, sampling: Sampling, faults: Faults = NO_FAULTS) -> RoundResult:
    """Run the next round and update `training`. After an error, `training` is unchanged."""
    algorithm, server, number = engine.algorithm, training.server, training.rounds + 1
    protection, privacy = engine.protection, engine.protection.privacy
    seconds: dict[str, float] = {}
    sampled, responding = clients_of_round(number, engine.clients, sampling, faults)
    if not protection.can_aggregate(len(sampled), len(responding)):
        training.rounds = number
        return skipped_round(number, sampled, count_down(algorithm, server, len(sampled)))

    with timed(seconds, "train", engine.device):
        try:
            trained = engine.train(server, responding, training.states, number)
        except SkippedRoundError:
            training.rounds = number
            return skipped_round(number, sampled, count_down(algorithm, server, len(sampled)))
        seconds["train"] = trained.seconds
        trained = without_losses(trained) if protection.hides_losses else trained
        responded = trained.updates.clients.numpy()
        sent = faults.attack.send(server.model, trained.updates, faults.attackers, sampling.seed, number)
        max_norm = faults.max_norm if protection.checks_updates else 0.0
        trained, refused = refuse_updates(replace(trained, updates=sent), server.model, max_norm, number)
        if protection.secure and not protection.on_nodes:  # nodes refuse this themselves
            trained, large = refuse_too_large(trained, server.model, algorithm.weighting, len(sampled))
            refused |= large
        updates, clients = trained.updates, trained.updates.clients.numpy()

    counts: ClassCounts | None = None
    refused_workers: Refused = {}
    alone = protection.secure and weighs_alone(algorithm.weighting)
    if algorithm.weighting.needs_counts and not (alone and protection.on_nodes):
        with timed(seconds, "evaluate_workers", engine.device):
            workers = sample_workers(sampling.seed, number, engine.clients, sampled, sampling.workers)
            counts = evaluate_by_workers(
                engine, updates, workers[np.isin(sampled, clients)], sampling.seed, number, faults
            )
            if not privacy.noisy_reports:
                counts, refused_workers = refuse_reports(counts)

    with timed(seconds, "aggregate", engine.device):
        if alone:
            traffic = engine.traffic(server, len(sampled), len(responded), updates, None)
            client_weights, scales = weigh_alone(algorithm, updates, counts)
        else:
            traffic = engine.traffic(server, len(sampled), len(responded), updates, counts)
            client_weights = weigh(algorithm, server, updates, None if counts is None else privacy.combined(counts))
            scales = len(clients) * client_weights.weights
        released = protection.release(server.model, updates, client_weights.weights, scales, number)
        server = algorithm.aggregate(server, released, client_weights.weights)
        check_server(server, number)

    training.server = server
    training.states.update(zip(clients.tolist(), trained.states, strict=True))
    training.rounds = number
    missing = tuple(sampled[~np.isin(sampled, responded)].tolist())
    losses = trained.losses[:0] if protection.hides_losses else trained.losses
    return RoundResult(
        number, clients, losses, client_weights, traffic, seconds, updates.lr, missing, refused, refused_workers
    )


def clients_of_round(number: int, clients: int, sampling: Sampling, faults: Faults) -> tuple[Indices, Indices]:
    """Return the clients that a round samples, and those of them that respond."""
    sampled = sample_clients(sampling.seed, number, clients, sampling.per_round)
    return sampled, sampled[which_respond(sampling.seed, number, sampled, faults.dropout)]


def skipped_round(number: int, sampled: Indices, down: int) -> RoundResult:
    """Return the result of a round in which no client responded, or too few."""
    none = torch.zeros(0)
    return RoundResult(
        number, sampled[:0], none, ClientWeights(none), Traffic(down, 0, 0), {}, missing=tuple(sampled.tolist())
    )


def evaluate_by_workers(
    engine: Engine, updates: Updates, workers: Indices, seed: int, number: int, faults: Faults
) -> ClassCounts:
    """Return the workers' reports on the clients' models, with zeros for workers that do not respond."""
    clients, nodes = updates.clients.numpy(), torch.from_numpy(workers).to(engine.device)
    counts = engine.protection.report(engine.evaluate_workers(updates, workers), clients, workers, number)
    counts = faults.attack.report(counts, clients, workers, faults.attackers)
    silent = ~which_workers_respond(seed, number, workers, faults.dropout)
    return replace(counts.without(torch.from_numpy(silent).to(engine.device)), workers=nodes)


def without_losses(trained: TrainedRound) -> TrainedRound:
    """Return the round without the training losses, which clients do not send if their updates are private."""
    return replace(trained, meters={**trained.meters, "loss": torch.zeros_like(trained.meters["loss"])})


def weigh(algorithm: Algorithm, server: Server, updates: Updates, counts: ClassCounts | None) -> ClientWeights:
    """Return the weights of the method's weighting, adjusted by the aggregator if it depends on the updates."""
    client_weights, aggregator = algorithm.weighting.weigh(updates, counts), algorithm.aggregator
    if not aggregator.selects:
        return client_weights
    return replace(
        client_weights, weights=aggregator.select(client_updates(server.model, updates), client_weights.weights)
    )


def weigh_alone(algorithm: Algorithm, updates: Updates, counts: ClassCounts | None) -> tuple[ClientWeights, Tensor]:
    """Return what the server knows of the weights, which is nothing, and what clients multiply their updates by.

    On real nodes there are no `counts`, because the updates are the weighted mean already.
    """
    equal = torch.full_like(updates.sizes, 1 / len(updates.sizes), dtype=torch.float64)
    scales = torch.ones_like(equal) if counts is None else algorithm.weighting.own_scale(counts)
    assert scales is not None  # the configuration refuses such weightings
    return ClientWeights(equal), scales


def check_server(server: Server, round_number: int) -> None:
    """Raise an error if the aggregate is not finite although all updates are."""
    trees = [server.model.params, server.model.buffers, *server.memory.values()]
    if not bool(finite([expand(tree, 1) for tree in trees])):
        raise TrainingError(f"round {round_number}: the aggregate is not finite; try a smaller --lr or server_lr")


def count_traffic(
    algorithm: Algorithm, server: Server, sampled: int, responded: int, updates: Updates, counts: ClassCounts | None
) -> Traffic:
    """Return the bytes that a real federation would send in this round.

    Sampled clients download the model and what the method broadcasts. Clients that responded upload their model and the
    method's uploads. Every worker except the client itself downloads the client's model, and uploads two vectors of
    counts (8 bytes per entry) if it responds. The label histogram, which it sends once in a run, is not counted.
    """
    down = count_down(algorithm, server, sampled)
    received = nbytes([updates.model.params, updates.model.buffers, *updates.uploads.values()])
    up = responded * received // len(updates.sizes)  # refused updates were sent too
    if counts is None:
        return Traffic(down, up, 0)
    clients, workers, classes = counts.labels.shape
    fetched = clients * (workers - 1) * nbytes([server.model.params, server.model.buffers])
    reported = int(counts.labels.any(-1).sum()) * 2 * classes * 8
    return Traffic(down + fetched, up + reported, fetched + reported)


def with_masks(traffic: Traffic, updates: Updates, sampled: int, responded: int, *, scales: bool) -> Traffic:
    """Return the bytes with secure aggregation: 8 per value of an update, and the keys and shares of the clients.

    With `scales`, clients also send their scales.
    """
    values = length([updates.model.params, updates.model.buffers]) // len(updates.sizes) + scales
    keys = Traffic(sampled * keys_down(sampled), sampled * keys_up(sampled), 0)
    return Traffic(traffic.down + keys.down, 8 * values * responded + keys.up, traffic.workers)


def count_down(algorithm: Algorithm, server: Server, sampled: int) -> int:
    """Return the bytes of the model and the method's broadcast, for all sampled clients."""
    return sampled * nbytes([server.model.params, server.model.buffers, *algorithm.broadcast(server).values()])


@contextmanager
def timed(seconds: dict[str, float], name: str, device: torch.device) -> Iterator[None]:
    """Add the elapsed time to `seconds[name]`, after the GPU has finished its work."""
    began = time.perf_counter()
    yield
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    seconds[name] = seconds.get(name, 0.0) + time.perf_counter() - began
