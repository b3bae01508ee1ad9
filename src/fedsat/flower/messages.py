"""The messages between the server and the nodes with which a run starts and trains:

    hello            the run's settings                          -> NodeInfo                     (query.hello)
    train            global model, the method's broadcast        -> update, steps, samples       (train)

Others are in `evaluation_messages` and `secure_messages`. A node may refuse any of them (`Refused`).
`fedsat.flower.records` encodes them and checks the version; `fedsat.flower.checks` checks the values of the replies.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Self

from fedsat.algorithms import Model
from fedsat.flower.records import (
    Envelope,
    Message,
    clean,
    model_trees,
    packed_bytes,
    state_trees,
    unpacked_bytes,
)
from fedsat.flower.run_spec import RunSpec
from fedsat.tree import State, Tree


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
