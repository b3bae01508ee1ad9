"""Clients' models evaluated by worker nodes, whose counts are checked before they count for anything."""

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
from fedsat.flower.messages import Measure, Measured, RunSpec

STAGE = "measure"

Sets = dict[int, list[int]]
"""The workers of each client, itself first."""


@dataclass(frozen=True)
class Workers:
    """The worker nodes of a run."""

    members: Members
    run: RunSpec

    @property
    def classes(self) -> int:
        """m, the number of classes."""
        return len(self.run.class_names)

    def each(self, models: dict[int, Model], sets: Sets, own: dict[int, Tensor]) -> Tensor:
        """All workers' counts, [K, w, 3, m]; `own` are clients' own, sent with their updates.

        A worker that does not answer, or whose counts cannot be right, adds nothing.
        """
        jobs: dict[int, Measure] = {}
        for client, nodes in sets.items():
            for worker in nodes[1:]:
                jobs.setdefault(worker, Measure(self.run, worker, {}, _nonce())).models[client] = models[client]
        checked = functools.partial(self._checked, jobs)
        reports = self.members.ask(STAGE, jobs, Measured, checked) if jobs else {}
        counts = self._nothing(sets)
        for row, (client, nodes) in enumerate(sets.items()):
            counts[row, 0] = own[client]
            for column, worker in enumerate(nodes[1:], start=1):
                if worker in reports:
                    counts[row, column] = reports[worker][client]
        return counts

    def sums(self, models: dict[int, Model], sets: Sets, tries: int) -> Tensor:
        """The sums over each client's workers, [K, w, 3, m], in its own place; what one worker reported cannot be read.

        A sum needs all its workers: where one fails, the others are asked again without it.
        """
        sums: dict[int, Tensor] = {}
        failed: set[int] = set()
        for _ in range(tries):
            self.members.refresh()
            there = self.members.nodes.keys() - failed
            left = {k: [w for w in nodes if w in there] for k, nodes in sets.items() if k not in sums}
            reports = self.members.ask(STAGE, self._masked(models, left), Measured, lambda _, reply: reply.counts)
            for client, nodes in left.items():
                told = [reports[worker].get(str(client)) for worker in nodes if worker in reports]
                if len(told) == len(nodes):
                    sums[client] = self._sum(client, told)
            if len(sums) == len(sets):
                counts = self._nothing(sets)
                counts[:, 0] = torch.stack([sums[client] for client in sets])
                return counts
            failed |= {worker for nodes in left.values() for worker in nodes} - reports.keys()
        raise TrainingError(f"round {self.members.round}: workers went on failing, so the sums could not be formed")

    def _nothing(self, sets: Sets) -> Tensor:
        """Reports about no samples, [K, w, 3, m]."""
        return torch.zeros(len(sets), max(map(len, sets.values())), 3, self.classes, dtype=torch.int64)

    def _checked(self, jobs: dict[int, Measure], worker: int, reply: Measured) -> dict[int, Tensor]:
        if reply.counts.keys() != {str(client) for client in jobs[worker].models}:
            raise RefusedError("counts: not of the clients that it was asked about")
        counts = {int(client): check_counts(own, self.classes) for client, own in reply.counts.items()}
        if len({tuple(own[2].tolist()) for own in counts.values()}) > 1:
            raise RefusedError("counts: it has other samples for one client than for another")
        return counts

    def _masked(self, models: dict[int, Model], sets: Sets) -> dict[int, Measure]:
        """What to ask so that every worker masks its counts against the other workers of the same client."""
        nonce, cards = _nonce(), self.members.cards
        jobs: dict[int, Measure] = {}
        for client, nodes in sets.items():
            if len(nodes) < 2:
                raise TrainingError(
                    f"round {self.members.round}, client {client}: only one worker is left, whose own counts the sum"
                    " would be; more --workers may help"
                )
            for worker in nodes:
                job = jobs.setdefault(worker, Measure(self.run, worker, {}, nonce))
                job.models[client] = models[client]
                job.peers[client] = {peer: cards[peer].key for peer in nodes if peer != worker}
        return jobs

    def _sum(self, client: int, reports: list[Tensor | None]) -> Tensor:
        try:
            told = [r.numpy() for r in reports if r is not None and r.shape == (3, self.classes)]
            if len(told) < len(reports) or any(report.dtype != "int64" for report in told):
                raise RefusedError("counts: missing, or not whole numbers of each class")
            return check_counts(torch.from_numpy(masks.unmasked_sum(told)), self.classes)
        except RefusedError as error:
            raise TrainingError(
                f"round {self.members.round}, workers of client {client}: {error}; a sum does not tell whose they are,"
                " --worker-counts each would"
            ) from error


def _nonce() -> str:
    return uuid.uuid4().hex
