"""Evaluation of clients' models by worker nodes, and checks of the counts that they report."""

from __future__ import annotations

import functools
import itertools
import math
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedsat.algorithms import Model
from fedsat.errors import TrainingError
from fedsat.flower import masks
from fedsat.flower.checks import RefusedError, check_counts, check_integers
from fedsat.flower.evaluation_messages import EvaluateWorker, WorkerCounts
from fedsat.flower.influence import damped_counts, limit
from fedsat.flower.members import Members
from fedsat.flower.run_spec import RunSpec
from fedsat.tree import Tree

STAGE = "evaluate_workers"

Sets = dict[int, list[int]]
"""The workers of each client, beginning with the client itself."""

Pseudonyms = dict[int, dict[str, int]]
"""For each worker, the clients whose models it evaluates, by the names that the models have in this request."""


@dataclass(frozen=True)
class Workers:
    """The worker nodes of a run."""

    members: Members
    run: RunSpec
    max_weight: float = 0.0
    largest_count: float = math.inf
    """If workers add noise: the largest number in a report; nothing else can be checked then."""
    labels: dict[int, Tensor] = field(default_factory=dict)
    """T of every worker that has sent it. It is asked for only once."""

    @property
    def classes(self) -> int:
        """m, the number of classes."""
        return len(self.run.class_names)

    def samples(self, worker: int) -> int:
        """Return the number of samples about which a worker reports, as when it first joined; there may be none."""
        return self.members.infos[worker].judged

    @property
    def most(self) -> int | None:
        """The largest number of samples that a worker counts as having."""
        return None if self.noisy else limit(map(self.samples, self.members.infos), self.max_weight)

    @property
    def noisy(self) -> bool:
        """Whether workers add noise to their counts."""
        return self.largest_count < math.inf

    def each(self, models: dict[int, Model], sets: Sets, own: dict[int, Tensor]) -> Tensor:
        """Return the counts of each worker, [K, w, 3, m]; `own` are those of the clients, sent with their updates.

        A worker that does not respond, or whose counts are impossible, has zeros.
        """
        sealed = pseudonyms({client: nodes[1:] for client, nodes in sets.items()})
        jobs = self._jobs(models, sealed)
        checked, most = functools.partial(self._checked, sealed), self.most
        reports = self.members.insist(STAGE, jobs, WorkerCounts, checked, self._largest(models)) if jobs else {}
        counts = self._zeros(sets)
        for row, (client, nodes) in enumerate(sets.items()):
            counts[row, 0] = own[client]
            for column, worker in enumerate(nodes[1:], start=1):
                if worker in reports:
                    counts[row, column] = damped_counts(reports[worker][client], most)
        return counts

    def completed(self, worker: int, reports: Tree, sent: Tree) -> Tree:
        """Return Z, TP and T, [3, m], for each report of Z and TP; T is the first usable one that the worker sent."""
        labels, held = self.labels.get(worker), self.samples(worker)
        if labels is None:
            labels = check_integers("labels", sent.get("labels"), self.classes)
        whole = {
            name: self._possible(torch.vstack([check_integers("counts", report, 2, self.classes), labels]), held)
            for name, report in reports.items()
        }
        self.labels[worker] = labels
        return whole

    def sums(self, models: dict[int, Model], sets: Sets, tries: int) -> Tensor:
        """Return the sum over each client's workers, [K, w, 3, m], in the client's column; single reports stay secret.

        A sum needs a report from every worker. If a worker fails, the others repeat the evaluation without it.
        """
        sums: dict[int, Tensor] = {}
        failed: set[int] = set()
        for attempt in range(tries):
            if attempt:
                self.members.repeat()
            if self.members.strict:
                everyone = {worker for nodes in sets.values() for worker in nodes}
                self.members.wait_for(everyone, self.members.exchange.timeout)
                failed = set()
            self.members.refresh()
            connected = self.members.nodes.keys() - failed
            left = {k: [w for w in nodes if w in connected] for k, nodes in sets.items() if k not in sums}
            sealed = pseudonyms(left)
            jobs = self._masked(models, left, sealed)
            checked = functools.partial(self._unreadable, sealed)
            reports = self.members.request(STAGE, jobs, WorkerCounts, checked, self._largest(models))
            for client, nodes in left.items():
                received = [reports[worker][client] for worker in nodes if worker in reports]
                if len(received) == len(nodes):
                    sums[client] = self._sum(client, received, nodes)
            if len(sums) == len(sets):
                counts = self._zeros(sets)
                counts[:, 0] = torch.stack([sums[client] for client in sets])
                return counts
            failed |= {worker for nodes in left.values() for worker in nodes} - reports.keys()
        raise TrainingError(
            f"round {self.members.round}: workers failed repeatedly, so the sums of counts are incomplete"
        )

    def _zeros(self, sets: Sets) -> Tensor:
        """Return empty reports, [K, w, 3, m]."""
        return torch.zeros(len(sets), max(map(len, sets.values())), 3, self.classes, dtype=torch.int64)

    def _largest(self, models: dict[int, Model]) -> int:
        """Return the most bytes of a reply: a header and three numbers per class for each client."""
        return 2**16 + len(models) * (2**10 + 3 * 8 * self.classes)

    def _checked(self, sealed: Pseudonyms, worker: int, reply: WorkerCounts) -> dict[int, Tensor]:
        """Return the counts [3, m] by client."""
        counts = self.completed(worker, _asked_for(reply, sealed[worker]), reply.labels)
        return {client: counts[name] for name, client in sealed[worker].items()}

    def _unreadable(self, sealed: Pseudonyms, worker: int, reply: WorkerCounts) -> dict[int, Tensor]:
        """Return masked counts by client. Only their form can be checked."""
        counts = _asked_for(reply, sealed[worker])
        return {
            client: check_integers("counts", counts[name], 3, self.classes) for name, client in sealed[worker].items()
        }

    def _jobs(self, models: dict[int, Model], sealed: Pseudonyms, *, masked: bool = False) -> dict[int, EvaluateWorker]:
        nonce = secrets.token_hex()
        return {
            worker: EvaluateWorker(
                self.run,
                worker,
                {name: models[client] for name, client in names.items()},
                nonce,
                labels=not masked and worker not in self.labels,
            )
            for worker, names in sealed.items()
        }

    def _masked(self, models: dict[int, Model], sets: Sets, sealed: Pseudonyms) -> dict[int, EvaluateWorker]:
        """Return the messages that let every worker mask its counts with the other workers of the same client."""
        jobs, infos = self._jobs(models, sealed, masked=True), self.members.infos
        names = {(worker, client): name for worker, named in sealed.items() for name, client in named.items()}
        for client, nodes in sets.items():
            if len(nodes) < 2:
                raise TrainingError(
                    f"round {self.members.round}, client {client}: only one worker is left, so the sum would"
                    " reveal its counts; use more --workers"
                )
            for pair in itertools.combinations(nodes, 2):
                keys = masks.keys_of_a_pair(*(infos[worker].key for worker in pair))
                for worker, key, sign in zip(pair, keys, (1, -1), strict=True):
                    jobs[worker].peers.setdefault(names[worker, client], {})[key] = sign
        return jobs

    def _possible(self, counts: Tensor, samples: int, workers: int = 1) -> Tensor:
        """Return counts [3, m] of these numbers of samples and workers; refuse impossible ones."""
        if not self.noisy:
            return check_counts(counts, samples)
        if int(counts.abs().max()) > workers * self.largest_count:
            raise RefusedError(f"counts: a value is above {workers * self.largest_count:g}")
        return counts

    def _sum(self, client: int, reports: list[Tensor], workers: list[int]) -> Tensor:
        try:
            total = torch.from_numpy(masks.unmasked_sum([report.numpy() for report in reports]))
            return self._possible(total, sum(map(self.samples, workers)), len(workers))
        except RefusedError as error:
            raise TrainingError(
                f"round {self.members.round}, workers of client {client}: {error}; use --worker-counts each to see"
                " which worker sent them"
            ) from error


def pseudonyms(sets: Sets) -> Pseudonyms:
    """Return new names for the models that each worker evaluates, in random order."""
    judged: dict[int, list[int]] = {}
    for client, nodes in sets.items():
        for worker in nodes:
            judged.setdefault(worker, []).append(client)
    shuffle = secrets.SystemRandom().sample
    return {
        worker: {secrets.token_hex(8): client for client in shuffle(clients, len(clients))}
        for worker, clients in judged.items()
    }


def _asked_for(reply: WorkerCounts, names: Mapping[str, int]) -> Tree:
    """Return the counts if they are those of the models that the worker was sent."""
    if reply.counts.keys() != names.keys():
        raise RefusedError("counts: not those of the requested models")
    return reply.counts
