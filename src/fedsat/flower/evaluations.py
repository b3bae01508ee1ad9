"""Evaluations of global models by the nodes: the requests, the checks of the replies, and how replies are combined."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from fedsat.algorithms import Model
from fedsat.errors import TrainingError
from fedsat.flower.checks import check_accuracies, check_confusion, check_histograms, check_losses
from fedsat.flower.evaluation_messages import Evaluate, Evaluated
from fedsat.flower.influence import damped_confusion, damped_histograms, limit
from fedsat.flower.members import Members
from fedsat.flower.run_spec import RunSpec
from fedsat.metrics import ClientAccuracy, Detail, Evaluation
from fedsat.metrics.histograms import BINS
from fedsat.tree import Tree

MARGIN = 2**20
"""Bytes of a reply besides its numbers: names, headers of arrays, and instructions."""


@dataclass(frozen=True)
class Evaluations:
    """Asks the nodes for evaluations, and combines their replies."""

    members: Members
    run: RunSpec
    clients: int
    max_weight: float

    def on_nodes(
        self, models: Sequence[Model], evaluations: list[Evaluation], client_accuracy: ClientAccuracy, detail: Detail
    ) -> list[Evaluation]:
        """Add the accuracies of the clients that respond to the server's own evaluations of these models.

        If there are none, return those on the samples that all nodes hold out.
        """
        how: str = client_accuracy if evaluations else "held-out"
        recalls: Tree = {}
        if how == "expected":
            recalls = {"recalls": torch.stack([torch.from_numpy(one.recall) for one in evaluations])}
        scores = detail.client_scores or (detail.scores and not evaluations)
        counts = detail.clients or detail.client_scores
        asked = Evaluate(self.run, 0, how, [] if recalls else list(models), recalls, counts, scores)
        replies = self.ask(asked, {client: self._samples(client, how) for client in range(self.clients)})
        if not replies:
            raise TrainingError(f"round {self.members.round}: no node could evaluate the model")
        tested = [info.tested for info in self.members.infos.values()]
        evaluations = evaluations or self.pooled(replies, len(models), tested)
        own = self.of_clients(replies, len(models))
        return [replace(one, **fields) for one, fields in zip(evaluations, own, strict=True)]

    def on_validation(self, model: Model, detail: Detail) -> Evaluation | None:
        """Evaluate a model on the validation samples of the nodes that have any."""
        held = {client: info.judged for client, info in self.members.infos.items() if info.judged}
        scores = detail.scores or detail.client_scores
        replies = self.ask(Evaluate(self.run, 0, "validation", [model], scores=scores), held)
        if not replies:
            return None
        pooled = self.pooled(replies, 1, held.values())[0]
        return replace(pooled, **self.of_clients(replies, 1)[0])

    def _samples(self, client: int, how: str) -> int:
        """Return the number of samples on which a client evaluates, or the most if it may leave some out."""
        info = self.members.infos.get(client)
        return 0 if info is None else info.tested if how == "held-out" else info.samples

    def ask(self, message: Evaluate, samples: Mapping[int, int]) -> dict[int, Tree]:
        """Ask clients to evaluate models on these numbers of samples, and return the results that pass the checks."""
        local, classes = message.how == "local", len(self.run.class_names)
        count = len(message.models) or len(message.recalls["recalls"])

        def checked(client: int, reply: Evaluated) -> Tree:
            sent = reply.results
            results = {"accuracy": check_accuracies(sent.get("accuracy"), count)}
            if message.how == "expected":
                return results
            if not local:
                results["loss"] = check_losses(sent.get("loss"), count)
            if message.counts or message.scores or not local:
                own = check_confusion(sent.get("confusion"), count, classes, samples[client], fewer=local)
                results["confusion"] = own
                if message.scores:
                    results["histograms"] = check_histograms(sent.get("histograms"), own)
            return results

        largest = MARGIN + 8 * count * (classes**2 + 2 + (classes + 1) * 2 * BINS * message.scores)
        everyone = {client: replace(message, client=client) for client in samples}
        return self.members.insist("evaluate", everyone, Evaluated, checked, largest)

    def of_clients(self, replies: Mapping[int, Tree], models: int) -> list[dict[str, Any]]:
        """Return the fields of each model's evaluation that describe single clients."""
        first, found = next(iter(replies.values())), list[dict[str, Any]]()
        for place in range(models):
            accuracies = np.full(self.clients, np.nan)
            fields: dict[str, Any] = {"client_accuracies": accuracies}
            for name in ("confusion", "histograms"):
                if name in first:
                    fields[f"client_{name}"] = np.zeros((self.clients, *first[name].shape[1:]), dtype=np.int64)
            for client, reply in replies.items():
                accuracies[client] = float(reply["accuracy"][place])
                for name in ("confusion", "histograms"):
                    if name in first:
                        fields[f"client_{name}"][client] = reply[name][place].numpy()
            found.append(fields)
        return found

    def pooled(self, replies: Mapping[int, Tree], models: int, samples: Iterable[int]) -> list[Evaluation]:
        """Return the evaluations on the samples of all nodes together. `samples` are the numbers of all nodes.

        No node counts as having more than `max_weight` times their median.
        """
        own = list(replies.values())
        most = limit(samples, self.max_weight)
        confusion = torch.stack([damped_confusion(reply["confusion"], most) for reply in own])
        counted = confusion.sum((2, 3)).to(torch.float64)
        losses = torch.stack([reply["loss"] for reply in own])
        known = counted.masked_fill(losses.isnan(), 0)
        losses = (losses.nan_to_num() * known).sum(0) / known.sum(0)
        scores = None
        if "histograms" in own[0]:
            scores = torch.stack([damped_histograms(reply["histograms"], most) for reply in own]).sum(0)
        return [
            Evaluation(
                confusion[:, place].sum(0).numpy(),
                float(losses[place]),
                histograms=None if scores is None else scores[place].numpy(),
            )
            for place in range(models)
        ]
