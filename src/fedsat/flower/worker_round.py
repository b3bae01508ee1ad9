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
from fedsat.flower.members import Members
from fedsat.flower.messages import EvaluateWorker, RunSpec, WorkerCounts

STAGE = "evaluate_workers"

Sets = dict[int, list[int]]
"""The workers of each client, beginning with the client itself."""


@dataclass(frozen=True)
class Workers:
    """The worker nodes of a run."""

    members: Members
    run: RunSpec

    @property
    def classes(self) -> int:
        """m, the number of classes."""
        return len(self.run.class_names)

    @property
    def may_report_nothing(self) -> bool:
        """Whether a worker may have no samples to evaluate on: it may be too small for a validation part."""
        return bool(self.run.settings["validation"])

    def each(self, models: dict[int, Model], sets: Sets, own: dict[int, Tensor]) -> Tensor:
        """Return the counts of each worker, [K, w, 3, m]; `own` are those of the clients, sent with their updates.

        A worker that does not respond, or whose counts are impossible, has zeros.
        """
        jobs: dict[int, EvaluateWorker] = {}
        for client, nodes in sets.items():
            for worker in nodes[1:]:
                jobs.setdefault(worker, EvaluateWorker(self.run, worker, {}, _nonce())).models[client] = models[client]
        checked = functools.partial(self._checked, jobs)
        reports = self.members.request(STAGE, jobs, WorkerCounts, checked) if jobs else {}
        counts = self._zeros(sets)
        for row, (client, nodes) in enumerate(sets.items()):
            counts[row, 0] = own[client]
            for column, worker in enumerate(nodes[1:], start=1):
                if worker in reports:
                    counts[row, column] = reports[worker][client]
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
            reports = self.members.request(
                STAGE, self._masked(models, left), WorkerCounts, lambda _, reply: reply.counts
            )
            for client, nodes in left.items():
                received = [reports[worker].get(str(client)) for worker in nodes if worker in reports]
                if len(received) == len(nodes):
                    sums[client] = self._sum(client, received)
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

    def _checked(self, jobs: dict[int, EvaluateWorker], worker: int, reply: WorkerCounts) -> dict[int, Tensor]:
        if reply.counts.keys() != {str(client) for client in jobs[worker].models}:
            raise RefusedError("counts: not those of the requested clients")
        counts = {int(client): self._possible(own) for client, own in reply.counts.items()}
        if len({tuple(own[2].tolist()) for own in counts.values()}) > 1:
            raise RefusedError("counts: the samples differ between clients")
        return counts

    def _possible(self, counts: Tensor) -> Tensor:
        return check_counts(counts, self.classes, may_be_empty=self.may_report_nothing)

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

    def _sum(self, client: int, reports: list[Tensor | None]) -> Tensor:
        try:
            received = [r.numpy() for r in reports if r is not None and r.shape == (3, self.classes)]
            if len(received) < len(reports) or any(report.dtype != "int64" for report in received):
                raise RefusedError("counts: missing, or not one integer per class")
            return self._possible(torch.from_numpy(masks.unmasked_sum(received)))
        except RefusedError as error:
            raise TrainingError(
                f"round {self.members.round}, workers of client {client}: {error}; use --worker-counts each to see"
                " which worker sent them"
            ) from error


def _nonce() -> str:
    return uuid.uuid4().hex
