"""An engine whose clients are real nodes. The rounds, the methods and the files are those of a simulation."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from fedsat.algorithms import Algorithm, Model, Server, Task, Updates
from fedsat.algorithms.base import no_examples
from fedsat.algorithms.footprint import echo, rehearse
from fedsat.data.splits import divide_among_clients
from fedsat.engine.evaluate import Counter
from fedsat.errors import SkippedRoundError
from fedsat.experiment.config import Config
from fedsat.flower.checks import RefusedError, check_update
from fedsat.flower.evaluations import MARGIN, Evaluations
from fedsat.flower.influence import counted, damped_counts, limit
from fedsat.flower.known import Known
from fedsat.flower.members import Members
from fedsat.flower.messages import Train, Trained
from fedsat.flower.run_spec import RunSpec
from fedsat.flower.secure_round import STAGE, SecureRound, check_masked
from fedsat.flower.terms import Terms
from fedsat.flower.worker_round import Workers
from fedsat.metrics import NO_DETAIL, ClassCounts, ClientAccuracy, Detail, Evaluation
from fedsat.rounds import Protection, TrainedRound
from fedsat.rounds.noise import secure
from fedsat.rounds.round import Traffic
from fedsat.rounds.secure import length, model_of, stacked, weighs_alone, without_scales
from fedsat.secure.protocol import SecureError
from fedsat.secure.shares import FEWEST
from fedsat.seeding import Indices
from fedsat.tree import KeptStates, State, Tree, nbytes, norms, tree_map

log = logging.getLogger("flwr")

ROUNDED = 1 + 1e-3
"""Factor by which a clipped update may exceed its bound because of rounding."""

USED = "used"
"""The only state the server stores per client: the last round whose update it used."""


class RemoteEngine:
    """Trains and evaluates by sending requests to nodes, and checks the replies before using them."""

    def __init__(
        self,
        run: RunSpec,
        config: Config,
        terms: Terms,
        members: Members,
        model: Model,
        test: Counter | None,
        known: Known | None = None,
    ) -> None:
        """`test` evaluates models on the server's test set; None if it has none.

        `known` is what the server knew about the nodes before a restart.
        """
        self.algorithm: Algorithm = config.algorithm
        self.initial_model = model
        self.device = next(iter(model.params.values())).device
        self.protection = Protection(config.privacy, secure, on_nodes=True, secure=config.secure_aggregation)
        self._run, self._config, self._terms = run, config, terms
        self._members, self._exchange = members, members.exchange
        self._workers = Workers(members, run, terms.max_weight, config.privacy.largest_count)
        self._test = test
        if known is not None:
            self._workers.labels.update(known.labels)
        self._evaluations = Evaluations(members, run, config.clients, terms.max_weight)
        self._own_counts: dict[int, torch.Tensor] = {}
        self._marks, self._worker_bytes = (0, 0), 0
        _, stacked = rehearse(self.algorithm, model, len(run.class_names))
        self._uploads = {name: _row(tree, 0) for name, tree in stacked.items() if tree}
        """Names and shapes of the method's uploads."""
        sent = nbytes([model.params, model.buffers, *self._uploads.values()])
        self._largest = MARGIN + 2 * sent
        """Bytes of an update, with room for the names and headers of small arrays."""

    @property
    def clients(self) -> int:
        """N, the number of clients."""
        return self._config.clients

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of the classes."""
        return self._run.class_names

    def train(self, server: Server, clients: Indices, states: KeptStates, round_number: int) -> TrainedRound:
        """Train the sampled clients, and retry until enough of them have sent a usable update."""
        self._members.begin(round_number)
        self._marks, self._worker_bytes = (self._exchange.down, self._exchange.up), 0
        if self.protection.secure:
            return self._train_securely(server, clients, states, round_number)
        received = self.algorithm.broadcast(server)
        count = self.algorithm.weighting.needs_counts and self._terms.worker_counts == "each"

        def message(client: int) -> Train:
            labels = count and client not in self._workers.labels
            used = last_used(states, client)
            return Train(self._run, client, round_number, used, server.model, received, count, labels)

        def checked(client: int, reply: Trained) -> Trained:
            check_update(reply, self.initial_model, self._uploads, *self._work_of(client))
            self._check_length(reply, server, received)
            if count:
                reports = {name: report for name, report in reply.counts.items() if name == "counts"}
                reply = replace(reply, counts=self._workers.completed(client, reports, reply.counts))
            self._note_lost_state(client, reply)
            return reply

        asked = {client: message(client) for client in clients.tolist()}
        needed = math.ceil(self._terms.min_fraction * len(clients))
        return self._joined(self._members.insist("train", asked, Trained, checked, self._largest, needed=needed))

    def _train_securely(self, server: Server, clients: Indices, states: KeptStates, round_number: int) -> TrainedRound:
        """Train the sampled clients, and compute the sum of their updates.

        Until the clients train, they can exchange their keys again. Afterwards, a second sum over other clients would
        reveal the difference. So if too many drop out then, the round is skipped.
        """
        model, received = server.model, self.algorithm.broadcast(server)
        messages = {
            client: Train(self._run, client, round_number, last_used(states, client), model, received, count=False)
            for client in clients.tolist()
        }
        process = SecureRound(self._members, self._run, round_number)
        needed = math.ceil(self._terms.min_fraction * len(clients))
        alone = weighs_alone(self.algorithm.weighting)
        values = length([model.params, model.buffers]) + alone

        def checked(client: int, reply: Trained) -> Trained:
            check_masked(reply, values, *self._work_of(client))
            self._note_lost_state(client, reply)
            return reply

        try:
            keys = process.exchange(messages, max(FEWEST, needed), self._terms.retries, self._terms.timeout)
            asked = {k: replace(message, inbox=keys.inbox(k)) for k, message in messages.items() if k in keys.sealed}
            replies = self._members.request("train", asked, Trained, checked, 2 * self._largest)
            if len(replies) < needed:
                raise SkippedRoundError(
                    f"{len(replies)} of {len(messages)} clients responded, but {needed} are needed (--min-fraction)"
                )
            words = {client: reply.masked["words"].numpy().view("uint64") for client, reply in replies.items()}
            total = process.total(keys, words)
            total, scales = without_scales(total, len(replies)) if alone else (total, self._scales(replies))
        except (SecureError, SkippedRoundError) as error:
            self._members.note(None, STAGE, f"the round is skipped: {error}")
            raise SkippedRoundError(str(error)) from error
        return self._round_of(replies, stacked(model_of(model, total, scales), len(replies)))

    def _scales(self, replies: Mapping[int, Trained]) -> float:
        """Return the sum of the scales of clients whose scales follow from their numbers of samples."""
        most = self._run.most_samples or None
        sizes = torch.tensor([counted(reply.samples, most) for reply in replies.values()], dtype=torch.float64)
        scales = self.algorithm.weighting.scale(sizes, self._run.mean_samples)
        assert scales is not None  # the configuration refuses such weightings
        return float(scales.sum())

    def _work_of(self, client: int) -> tuple[int, int]:
        """Return the numbers of samples and of steps with which a client trains."""
        samples = self._members.infos[client].samples
        return samples, self._config.local_training.work_of(client, self._members.round, samples)[1]

    def _counted(self, samples: int) -> int:
        return counted(samples, limit((info.samples for info in self._members.infos.values()), self._terms.max_weight))

    def _note_lost_state(self, client: int, reply: Trained) -> None:
        if reply.lost_state:
            self._members.note(client, "train", "it lost its state and started with a new one")

    def _check_length(self, reply: Trained, server: Server, received: State) -> None:
        """Refuse an update that its node should have clipped."""
        longest = self.protection.privacy.longest
        if longest == math.inf:
            return
        task = Task(
            start=server.model,
            received=received,
            state={},
            class_counts=torch.zeros(0, len(self.class_names)),
            mean_samples=self._run.mean_samples,
            lr=self._config.local_training.lr_in(self._members.round),
            epochs=self._config.epochs,
            network=echo,
            examples=no_examples,
            optimizer=self._config.optimizer,
        )
        sent = {name: tensor[None].to(self.device) for name, tensor in reply.model.params.items()}
        known = self.algorithm.start_of_update(task, torch.tensor([reply.steps], device=self.device))
        length = float(norms(tree_map(torch.sub, sent, known)))
        if length > longest * ROUNDED:
            raise RefusedError(f"update: it is {length:g} long, but dp_clip is {longest:g}")

    def _joined(self, replies: Mapping[int, Trained]) -> TrainedRound:
        """Return the replies in the form that all engines use."""
        own, most = list(replies.values()), self._workers.most
        self._own_counts = {
            k: damped_counts(reply.counts["counts"], most) for k, reply in replies.items() if reply.counts
        }
        model = Model(self._stack(r.model.params for r in own), self._stack(r.model.buffers for r in own))
        return self._round_of(
            replies, model, {name: self._stack(r.uploads[name] for r in own) for name in self._uploads}
        )

    def _round_of(self, replies: Mapping[int, Trained], model: Model, uploads: State | None = None) -> TrainedRound:
        own = list(replies.values())
        updates = Updates(
            clients=torch.tensor(list(replies)),
            model=model,
            uploads=uploads or {},
            sizes=torch.tensor([self._counted(reply.samples) for reply in own], device=self.device),
            steps=torch.tensor([reply.steps for reply in own], device=self.device),
            lr=self._config.local_training.lr_in(self._members.round),
            epochs=self._config.epochs,
            population=self.clients,
            optimizer=self._config.optimizer,
        )
        losses = torch.tensor([reply.loss for reply in own], device=self.device)
        states: list[State] = [{USED: {"round": torch.tensor(self._members.round)}} for _ in own]
        return TrainedRound(updates, states, {"loss": losses, "finite": updates.steps})

    def _stack(self, trees: Iterable[Tree]) -> Tree:
        gathered = list(trees)
        return {name: torch.stack([tree[name] for tree in gathered]).to(self.device) for name in gathered[0]}

    def evaluate_workers(self, updates: Updates, workers: Indices) -> ClassCounts:
        """Evaluate each client's model on its workers' nodes."""
        before = self._exchange.down + self._exchange.up
        models = {
            client: Model(_row(updates.model.params, row), _row(updates.model.buffers, row))
            for row, client in enumerate(updates.clients.tolist())
        }
        sets = dict(zip(models, workers.tolist(), strict=True))
        if self._terms.worker_counts == "each":
            counts = self._workers.each(models, sets, self._own_counts)
        else:
            counts = self._workers.sums(models, sets, self._terms.retries + 1)
        self._worker_bytes = self._exchange.down + self._exchange.up - before
        predicted, correct, labels = counts.to(self.device).unbind(2)
        return ClassCounts(predicted, correct, labels)

    def evaluate(
        self, models: Sequence[Model], client_accuracy: ClientAccuracy, detail: Detail = NO_DETAIL
    ) -> list[Evaluation]:
        """Test global models here or on the nodes, and collect the accuracies of the clients that respond."""
        if self._test and client_accuracy == "test-split":
            owners = self._test_owners(self._test.examples.labels)
            return [self._test.evaluate(model, owners, self.clients, detail) for model in models]
        evaluations = [self._test.evaluate(model, detail=detail) for model in models] if self._test else []
        if self.protection.privacy.active:  # an accuracy would reveal an exact number about the client's samples
            return evaluations
        return self._evaluations.on_nodes(models, evaluations, client_accuracy, detail)

    def validate(self, model: Model, detail: Detail = NO_DETAIL) -> Evaluation | None:
        """Evaluate a global model on the validation samples of the nodes that have any."""
        return self._evaluations.on_validation(model, detail)

    def _test_owners(self, labels: torch.Tensor) -> Indices:
        """Return the client of each test sample; a client that has not joined yet has no part."""
        counts = np.zeros((self.clients, len(self.class_names)), dtype=np.int64)
        for client, info in self._members.infos.items():
            counts[client] = info.class_counts["class_counts"].numpy()
        return divide_among_clients(labels.cpu().numpy(), counts, self._config.seed)

    def traffic(
        self, server: Server, sampled: int, responded: int, updates: Updates, counts: ClassCounts | None
    ) -> Traffic:
        """Return the bytes sent and received since the round began."""
        del server, sampled, responded, updates, counts
        down, up = self._exchange.down - self._marks[0], self._exchange.up - self._marks[1]
        self._marks = (self._exchange.down, self._exchange.up)
        return Traffic(down, up, self._worker_bytes)

    def remembered(self) -> dict[str, Any]:
        """Return what the server knows about the nodes."""
        members = self._members
        assert members.shape is not None
        infos, labels, owners = members.infos, self._workers.labels, members.owners
        return Known(self._run, vars(self._terms), members.shape, infos, labels, owners).to_json()

    def notes(self) -> dict[str, Any]:
        """Return the bytes of the evaluation, and which clients were left out and why."""
        spent = self._exchange.down + self._exchange.up - sum(self._marks)
        notes = self._members.take_notes()
        found: dict[str, Any] = {"bytes_evaluate": spent} | ({"left_out": notes} if notes else {})
        return found | ({"repeated": self._members.repeated} if self._members.repeated else {})


def last_used(states: KeptStates, client: int) -> int:
    """Return the last round whose update of a client the server used; 0 if there is none."""
    return int(states[client][USED]["round"]) if client in states else 0


def _row(tree: Tree, row: int) -> Tree:
    return {name: tensor[row] for name, tensor in tree.items()}
