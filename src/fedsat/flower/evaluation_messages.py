"""The messages with which the server asks nodes to evaluate models:

evaluate_worker  models of clients, without their names      -> vectors of counts each       (evaluate.worker)
evaluate         global models, or their recalls             -> the client's accuracy        (evaluate)
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import ClassVar, Self

from fedsat.algorithms import Model
from fedsat.flower.records import Envelope, Message, model_trees
from fedsat.flower.run_spec import RunSpec
from fedsat.tree import Tree


@dataclass(frozen=True)
class EvaluateWorker(Message):
    """The server asks a worker to evaluate clients' models on its samples.

    The worker is not told whose models they are: each has a pseudonym that is used once, and their order is random.
    """

    run: RunSpec
    worker: int
    models: dict[str, Model]
    """By pseudonym."""
    nonce: str
    """Used once. Masks are drawn from it and the workers' secrets."""
    labels: bool = False
    """Whether the worker also sends its label histogram; the server asks for it only once in a run."""
    peers: dict[str, dict[str, int]] = field(default_factory=dict)
    """If only sums may be readable: for each model, the other workers' keys for this request, with the masks' signs."""

    name: ClassVar[str] = "evaluate_worker"
    kind: ClassVar[str] = "evaluate.worker"

    def envelope(self) -> Envelope:
        """Return the content of the message."""
        models = {
            name: tree for k, model in self.models.items() for name, tree in model_trees(f"model/{k}", model).items()
        }
        values = {
            "run": self.run.text(),
            "worker": self.worker,
            "nonce": self.nonce,
            "labels": self.labels,
            "peers": json.dumps(self.peers),
        }
        return Envelope(values, trees=models)

    @classmethod
    def read(cls, envelope: Envelope) -> Self:
        """Return the message with this content."""
        peers = {
            str(name): {str(key): 1 if sign == 1 else -1 for key, sign in keys.items()}
            for name, keys in envelope.json("peers").items()
        }
        return cls(
            RunSpec.of(envelope.text("run")),
            envelope.whole("worker"),
            envelope.models("model"),
            envelope.text("nonce"),
            envelope.flag("labels"),
            peers,
        )


@dataclass(frozen=True)
class WorkerCounts(Message):
    """A worker's reply to `EvaluateWorker`: what it counted for each model."""

    counts: Tree
    """By pseudonym: Z and TP, [2, m]; if only sums are readable, Z, TP and T, masked, [3, m]."""
    labels: Tree = field(default_factory=dict)
    """If requested: the label histogram T, `labels`, [m], which is the same for all models."""

    name: ClassVar[str] = "worker_counts"

    def envelope(self) -> Envelope:
        """Return the content of the message."""
        return Envelope(trees={"counts": self.counts, "labels": self.labels})

    @classmethod
    def read(cls, envelope: Envelope) -> Self:
        """Return the message with this content."""
        return cls(envelope.tree("counts"), envelope.tree("labels"))


@dataclass(frozen=True)
class Evaluate(Message):
    """The server asks for a client's accuracy with global models."""

    run: RunSpec
    client: int
    how: str
    """`expected`: from the recalls and the client's class distribution; `local`: on its training samples; `held-out`
    and `validation`: on the samples it held out, or set aside, for which it also reports the confusion matrix."""
    models: list[Model] = field(default_factory=list)
    recalls: Tree = field(default_factory=dict)
    """`recalls` [models, m], instead of the models."""
    counts: bool = False
    """Whether the client also reports the confusion matrix for `local`, because a metric needs it."""
    scores: bool = False
    """Whether it also reports histograms of the scores, except for `expected`."""

    name: ClassVar[str] = "evaluate"
    kind: ClassVar[str] = "evaluate"

    def envelope(self) -> Envelope:
        """Return the content of the message."""
        models = {
            name: tree
            for place, model in enumerate(self.models)
            for name, tree in model_trees(f"model/{place}", model).items()
        }
        values = {"run": self.run.text(), "client": self.client, "how": self.how}
        values |= {"counts": self.counts, "scores": self.scores}
        return Envelope(values, trees={**models, "recalls": self.recalls})

    @classmethod
    def read(cls, envelope: Envelope) -> Self:
        """Return the message with this content."""
        models = envelope.models("model")
        return cls(
            RunSpec.of(envelope.text("run")),
            envelope.whole("client"),
            envelope.text("how"),
            [models[name] for name in sorted(models, key=int)],
            envelope.tree("recalls"),
            envelope.flag("counts"),
            envelope.flag("scores"),
        )


@dataclass(frozen=True)
class Evaluated(Message):
    """A client's reply to `Evaluate`."""

    results: Tree
    """`accuracy` [models]; for `held-out` and `validation` also `confusion` [models, m, m] and mean `loss` [models].
    If requested: `confusion` for `local`, and `histograms` [models, m + 1, BINS, 2]."""

    name: ClassVar[str] = "evaluated"

    def envelope(self) -> Envelope:
        """Return the content of the message."""
        return Envelope(trees={"results": self.results})

    @classmethod
    def read(cls, envelope: Envelope) -> Self:
        """Return the message with this content."""
        return cls(envelope.tree("results"))
