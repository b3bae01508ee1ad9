"""All messages between the server and the nodes.

    hello            the run's settings                          -> NodeInfo                     (query.hello)
    train            global model, the method's broadcast        -> update, steps, samples       (train)
    evaluate_worker  models of clients, without their names      -> vectors of counts each       (evaluate.worker)
    evaluate         global models, or their recalls             -> the client's accuracy        (evaluate)

A node may refuse any of them (`Refused`).
`fedsat.flower.records` encodes them and checks the version; `fedsat.flower.checks` checks the values of the replies.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

from flwr.app import RecordDict

from fedsat.algorithms import Model
from fedsat.flower.records import HEAD, Envelope, Message, MessageError, clean, model_trees, state_trees
from fedsat.tree import State, Tree

RUN_ID = re.compile("(?:[0-9a-f]{32})?")

LONGEST_RUN = 2**22
"""Largest number of characters of a run's settings, class names and schema."""


@dataclass(frozen=True)
class RunSpec:
    """What every node needs to know about the run: its settings, the classes, and how samples are normalised."""

    settings: Mapping[str, Any]
    """The configuration as nested plain values (`Config.table`)."""
    class_names: tuple[str, ...]
    held_out: bool
    """Whether the global model is tested on samples that nodes hold out, instead of the server's test set."""
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    mean_samples: float = 0.0
    """n/N, the mean number of samples per client; 0 before the nodes have introduced themselves."""
    schema: str = ""
    """The schema of a table as JSON; empty for other data."""
    id: str = ""
    """The run's own ID, 32 hexadecimal digits. It stays the same when the server or a node starts again."""
    most_samples: int = 0
    """The most samples that a client counts with; 0: no limit."""

    def text(self) -> str:
        """Return the spec as one line of JSON; numbers are exact."""
        return json.dumps(vars(self), sort_keys=True)

    @staticmethod
    def of(text: str) -> RunSpec:
        """Read what `text` returned."""
        spec = json.loads(text)
        mean, std = (_finite(spec[key]) for key in ("mean", "std"))
        if len(mean) != len(std) or not all(one > 0 for one in std):
            raise ValueError("the mean and the standard deviation do not belong together")
        if not RUN_ID.fullmatch(spec["id"]):
            raise ValueError("the run's ID is not 32 hexadecimal digits")
        return RunSpec(
            dict(spec["settings"]),
            tuple(str(name) for name in list(spec["class_names"])),
            bool(spec["held_out"]),
            mean,
            std,
            mean_samples=_finite([spec["mean_samples"]])[0],
            schema=str(spec["schema"]),
            id=spec["id"],
            most_samples=int(spec["most_samples"]),
        )


def packed_bytes(content: Mapping[int, bytes]) -> str:
    """Return bytes of clients as JSON."""
    return json.dumps({client: part.hex() for client, part in content.items()})


def unpacked_bytes(content: Any) -> dict[int, bytes]:
    """Read the parsed JSON of `packed_bytes`."""
    return {int(client): bytes.fromhex(part) for client, part in content.items()}


def _finite(numbers: list[float]) -> tuple[float, ...]:
    found = tuple(float(number) for number in numbers)
    if not all(map(math.isfinite, found)):
        raise ValueError("a number is not finite")
    return found


def run_of(records: RecordDict) -> RunSpec:
    """Return the run that a request belongs to; nothing else of the message is decoded."""
    try:
        text = str(records.config_records[HEAD]["run"])
        if len(text) > LONGEST_RUN:
            raise ValueError(f"it has {len(text):,} characters, more than {LONGEST_RUN:,}")
        return RunSpec.of(text)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise MessageError(f"the request has no readable run: {clean(str(error))}") from error


@dataclass(frozen=True)
class Refused(Message):
    """A node's reply, in place of any other, if it cannot or will not do what was asked."""

    error: str
    """The class of the error."""
    why: str

    name: ClassVar[str] = "refused"

    def envelope(self) -> Envelope:
        """Return the content of the message."""
        return Envelope({"error": self.error, "why": self.why})

    @classmethod
    def read(cls, envelope: Envelope) -> Self:
        """Return the message with this content."""
        return cls(clean(envelope.text("error")), clean(envelope.text("why")))


@dataclass(frozen=True)
class Hello(Message):
    """The server's first message to a node: which client is it?"""

    run: RunSpec

    name: ClassVar[str] = "hello"
    kind: ClassVar[str] = "query.hello"

    def envelope(self) -> Envelope:
        """Return the content of the message."""
        return Envelope({"run": self.run.text()})

    @classmethod
    def read(cls, envelope: Envelope) -> Self:
        """Return the message with this content."""
        return cls(RunSpec.of(envelope.text("run")))


@dataclass(frozen=True)
class NodeInfo(Message):
    """A node's reply to `Hello`. It reveals nothing about labels, unless the run asks for the class counts."""

    number: int
    """The client's number (the node's partition-id), or −1 if the server may choose it."""
    shape: tuple[int, ...]
    """The shape of a sample."""
    samples: int
    """n_k, the number of samples that the node trains on."""
    key: str
    """The node's public key for this run, in hex; see `fedsat.flower.masks`."""
    moments: Tree = field(default_factory=dict)
    """If samples are held out: the mean and variance of each channel of the training samples."""
    class_counts: Tree = field(default_factory=dict)
    """If the test set is divided among the clients: `class_counts` of all samples of the node, [m]."""
    validation: int = 0
    """The number of samples that it sets aside for its evaluations as a worker."""
    tested: int = 0
    """If samples are held out: their number."""
    judged: int = 0
    """The number of samples about which it reports as a worker."""
    lasting: bool = False
    """Whether the node keeps its key on disk, so that its number belongs to this key for the whole run."""

    name: ClassVar[str] = "node_info"

    def envelope(self) -> Envelope:
        """Return the content of the message."""
        values = {"number": self.number, "shape": list(self.shape), "key": self.key, "lasting": self.lasting}
        numbers = {"samples": self.samples, "validation": self.validation}
        numbers |= {"tested": self.tested, "judged": self.judged}
        return Envelope(values, numbers, {"moments": self.moments, "class_counts": self.class_counts})

    @classmethod
    def read(cls, envelope: Envelope) -> Self:
        """Return the message with this content."""
        return cls(
            envelope.whole("number"),
            envelope.wholes("shape"),
            envelope.whole("samples"),
            envelope.text("key"),
            envelope.tree("moments"),
            envelope.tree("class_counts"),
            envelope.whole("validation"),
            envelope.whole("tested"),
            envelope.whole("judged"),
            envelope.flag("lasting"),
        )


@dataclass(frozen=True)
class Train(Message):
    """The server asks a sampled client to train."""

    run: RunSpec
    client: int
    round: int
    used: int
    """The last round in which the server used an update of this client; 0 if there is none."""
    model: Model
    received: State
    """What the method sends besides the model (`Algorithm.broadcast`)."""
    count: bool
    """Whether the client also evaluates its new model, as its first worker."""
    labels: bool = False
    """Whether it then sends the label histogram as well; the server asks for it only once in a run."""
    inbox: dict[int, bytes] = field(default_factory=dict)
    """With secure aggregation: the shares that its peers encrypted for it."""

    name: ClassVar[str] = "train"
    kind: ClassVar[str] = "train"

    def envelope(self) -> Envelope:
        """Return the content of the message."""
        return Envelope(
            {
                "run": self.run.text(),
                "client": self.client,
                "round": self.round,
                "used": self.used,
                "count": self.count,
                "labels": self.labels,
                "inbox": packed_bytes(self.inbox),
            },
            trees={**model_trees("model", self.model), **state_trees("received", self.received)},
        )

    @classmethod
    def read(cls, envelope: Envelope) -> Self:
        """Return the message with this content."""
        return cls(
            RunSpec.of(envelope.text("run")),
            envelope.whole("client"),
            envelope.whole("round"),
            envelope.whole("used"),
            envelope.model("model"),
            envelope.state("received"),
            envelope.flag("count"),
            envelope.flag("labels"),
            unpacked_bytes(envelope.json("inbox")),
        )


@dataclass(frozen=True)
class Trained(Message):
    """A client's reply to `Train`. Its new state stays on the node."""

    model: Model
    uploads: State
    steps: int
    samples: int
    loss: float
    """Sum of the losses of all steps."""
    lost_state: bool
    """Whether the node no longer had the client's state from an earlier round, and started with a new one."""
    counts: Tree = field(default_factory=dict)
    """If requested, the client's evaluation of its model, as in `WorkerCounts`: `counts`, [2, m], and `labels`, [m]."""
    masked: Tree = field(default_factory=dict)
    """With secure aggregation, instead of the model: the scaled and masked update, `words`."""

    name: ClassVar[str] = "trained"

    def envelope(self) -> Envelope:
        """Return the content of the message."""
        return Envelope(
            {"lost_state": self.lost_state},
            {"steps": self.steps, "samples": self.samples, "loss": self.loss},
            {
                **model_trees("model", self.model),
                **state_trees("uploads", self.uploads),
                "counts": self.counts,
                "masked": self.masked,
            },
        )

    @classmethod
    def read(cls, envelope: Envelope) -> Self:
        """Return the message with this content."""
        return cls(
            envelope.model("model"),
            envelope.state("uploads"),
            envelope.whole("steps"),
            envelope.whole("samples"),
            envelope.real("loss"),
            envelope.flag("lost_state"),
            envelope.tree("counts"),
            envelope.tree("masked"),
        )


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
