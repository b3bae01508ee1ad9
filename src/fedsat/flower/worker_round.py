"""Evaluation of clients' models by worker nodes, and checks of the counts that they report."""

from __future__ import annotations

import functools
import uuid
from dataclasses import dataclass

import torch
from torch import Tensor

from fedsat.algorithms import Model
from fedsat.errors import TrainingError
from fedsat.flower import masks
from fedsat.flower.checks import RefusedError, check_counts
from fedsat.flower.influence import damped_counts, limit
from fedsat.flower.members import Members
from fedsat.flower.messages import EvaluateWorker, RunSpec, WorkerCounts
from fedsat.tree import Tree

STAGE = "evaluate_workers"

Sets = dict[int, list[int]]
"""The workers of each client, beginning with the client itself."""


@dataclass(frozen=True)
class Workers:
    """The worker nodes of a run."""

    members: Members
    run: RunSpec
    max_weight: float = 0.0

    @property
    def classes(self) -> int:
        """m, the number of classes."""
        return len(self.run.class_names)

    def samples(self, worker: int) -> int:
        """Return the number of samples on which a worker evaluates, as at its first greeting.

        With validation, there may be none: the node may be too small for a validation part.
        """
        info = self.members.infos[worker]
        return info.validation if self.run.settings["validation"] else info.samples

    @property
    def most(self) -> int | None:
        """The most samples that a worker counts with."""
        return limit(map(self.samples, self.members.infos), self.max_weight)

    def each(self, models: dict[int, Model], sets: Sets, own: dict[int, Tensor]) -> Tensor:
        """Return the counts of each worker, [K, w, 3, m]; `own` are those of the clients, sent with their updates.

        A worker that does not respond, or whose counts are impossible, has zeros.
        """
        jobs: dict[int, EvaluateWorker] = {}
        for client, nodes in sets.items():
            for worker in nodes[1:]:
                jobs.setdefault(worker, EvaluateWorker(self.run, worker, {}, _nonce())).models[client] = models[client]
        checked, most = functools.partial(self._checked, jobs), self.most
        reports = self.members.request(STAGE, jobs, WorkerCounts, checked, self._largest(models)) if jobs else {}
        counts = self._zeros(sets)
        for row, (client, nodes) in enumerate(sets.items()):
            counts[row, 0] = own[client]
            for column, worker in enumerate(nodes[1:], start=1):
                if worker in reports:
                    counts[row, column] = damped_counts(reports[worker][client], most)
        return counts

    def sums(self, models: dict[int, Model], sets: Sets, tries: int) -> Tensor:
        """Return the sum over each client's workers, [K, w, 3, m], in the client's column; single reports stay secret.

        A sum needs a report from every worker. If a worker fails, the others repeat the evaluation without it.
        """
        sums: dict[int, Tensor] = {}
        failed: set[int] = set()
        for _ in range(tries):
            self.members.refresh()
            connected = self.members.nodes.keys() - failed
            left = {k: [w for w in nodes if w in connected] for k, nodes in sets.items() if k not in sums}
            jobs = self._masked(models, left)
            checked = functools.partial(self._unreadable, jobs)
            reports = self.members.request(STAGE, jobs, WorkerCounts, checked, self._largest(models))
            for client, nodes in left.items():
                received = [reports[worker][str(client)] for worker in nodes if worker in reports]
                if len(received) == len(nodes):
                    sums[client] = self._sum(client, received, sum(map(self.samples, nodes)))
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

    def _checked(self, jobs: dict[int, EvaluateWorker], worker: int, reply: WorkerCounts) -> dict[int, Tensor]:
        if reply.counts.keys() != {str(client) for client in jobs[worker].models}:
            raise RefusedError("counts: not those of the requested clients")
        held = self.samples(worker)
        counts = {int(client): check_counts(own, self.classes, held) for client, own in reply.counts.items()}
        if len({tuple(own[2].tolist()) for own in counts.values()}) > 1:
            raise RefusedError("counts: the samples differ between clients")
        return counts

    def _unreadable(self, jobs: dict[int, EvaluateWorker], worker: int, reply: WorkerCounts) -> Tree:
        """Return masked counts. Only their form can be checked."""
        if reply.counts.keys() != {str(client) for client in jobs[worker].models}:
            raise RefusedError("counts: not those of the requested clients")
        for counts in reply.counts.values():
            if counts.shape != (3, self.classes) or counts.dtype != torch.int64:
                raise RefusedError(f"counts: {counts.dtype} {list(counts.shape)}, not integers [3, {self.classes}]")
        return reply.counts

    def _masked(self, models: dict[int, Model], sets: Sets) -> dict[int, EvaluateWorker]:
        """Return the messages that let every worker mask its counts with the other workers of the same client."""
        nonce, infos = _nonce(), self.members.infos
        jobs: dict[int, EvaluateWorker] = {}
        for client, nodes in sets.items():
            if len(nodes) < 2:
                raise TrainingError(
                    f"round {self.members.round}, client {client}: only one worker is left, so the sum would"
                    " reveal its counts; use more --workers"
                )
            for worker in nodes:
                job = jobs.setdefault(worker, EvaluateWorker(self.run, worker, {}, nonce))
                job.models[client] = models[client]
                job.peers[client] = {peer: infos[peer].key for peer in nodes if peer != worker}
        return jobs

    def _sum(self, client: int, reports: list[Tensor], samples: int) -> Tensor:
        try:
            total = torch.from_numpy(masks.unmasked_sum([report.numpy() for report in reports]))
            return check_counts(total, self.classes, samples)
        except RefusedError as error:
            raise TrainingError(
                f"round {self.members.round}, workers of client {client}: {error}; use --worker-counts each to see"
                " which worker sent them"
            ) from error


def _nonce() -> str:
    return uuid.uuid4().hex
