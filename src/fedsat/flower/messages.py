"""What the server and the nodes say to each other: every message that crosses the wire.

    hello     what the run is                                   -> who the node is            (query.hello)
    train     global model, what the method broadcasts, round   -> update, steps, samples     (train)
    measure   models of the clients that the node works for     -> three count vectors each   (evaluate.measure)
    evaluate  global models, or their recalls                   -> the node's accuracy        (evaluate)

`fedsat.flower.records` is their encoding and its version; whether the numbers in an answer make sense is judged in
`fedsat.flower.checks`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

from fedsat.algorithms import Model
from fedsat.flower.records import Envelope, Message, model_trees, state_trees
from fedsat.tree import State, Tree

KEY = 32
"""The bytes of a public key."""


@dataclass(frozen=True)
class RunSpec:
    """What every node is told of the run: its settings, the classes, and how samples are normalised."""

    settings: Mapping[str, Any]
    """The configuration as nested plain values (`Config.table`)."""
    class_names: tuple[str, ...]
    held_out: bool
    """Whether nodes hold out samples, on which the global model is tested; else the server has a test set."""
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()

    def text(self) -> str:
        """As one line of JSON; numbers survive to the last bit."""
        return json.dumps(vars(self), sort_keys=True)

    @staticmethod
    def of(text: str) -> RunSpec:
        """Read back what `text` wrote."""
        spec = json.loads(text)
        names, mean, std = (tuple(spec[key]) for key in ("class_names", "mean", "std"))
        return RunSpec(dict(spec["settings"]), names, bool(spec["held_out"]), mean, std)


@dataclass(frozen=True)
class Hello(Message):
    """The server asks a node that it does not know yet who it is."""

    run: RunSpec

    name: ClassVar[str] = "hello"
    kind: ClassVar[str] = "query.hello"

    def envelope(self) -> Envelope:
        """The message's parts."""
        return Envelope({"run": self.run.text()})

    @classmethod
    def read(cls, envelope: Envelope) -> Self:
        """The message that has these parts."""
        return cls(RunSpec.of(envelope.text("run")))


@dataclass(frozen=True)
class Card(Message):
    """A node's answer to `Hello`. It says nothing about labels."""

    number: int
    """The client that the node is (its partition-id), or −1 if it does not mind."""
    shape: tuple[int, ...]
    """The shape of a sample."""
    key: str
    """The node's public key of this run, in hex; see `fedsat.flower.masks`."""
    moments: Tree = field(default_factory=dict)
    """Where samples are held out: how many there are to train on, and the mean and variance of each channel."""

    name: ClassVar[str] = "card"

    def envelope(self) -> Envelope:
        """The message's parts."""
        return Envelope(
            {"number": self.number, "shape": json.dumps(self.shape), "key": self.key}, trees={"moments": self.moments}
        )

    @classmethod
    def read(cls, envelope: Envelope) -> Self:
        """The message that has these parts."""
        shape = tuple(int(side) for side in json.loads(envelope.text("shape")))
        key = envelope.text("key")
        if len(bytes.fromhex(key)) != KEY:
            raise ValueError("the public key has another length")
        return cls(envelope.whole("number"), shape, key, envelope.tree("moments"))


@dataclass(frozen=True)
class Train(Message):
    """The server calls a client."""

    run: RunSpec
    client: int
    round: int
    used: int
    """The round in which the server last used an update of this client; 0 if it never did."""
    model: Model
    received: State
    """What the method sends along (`Algorithm.broadcast`)."""
    count_own: bool
    """Whether the client should evaluate its own model, as the first of its workers."""

    name: ClassVar[str] = "train"
    kind: ClassVar[str] = "train"

    def envelope(self) -> Envelope:
        """The message's parts."""
        return Envelope(
            {
                "run": self.run.text(),
                "client": self.client,
                "round": self.round,
                "used": self.used,
                "count_own": self.count_own,
            },
            trees={**model_trees("model", self.model), **state_trees("received", self.received)},
        )

    @classmethod
    def read(cls, envelope: Envelope) -> Self:
        """The message that has these parts."""
        return cls(
            RunSpec.of(envelope.text("run")),
            envelope.whole("client"),
            envelope.whole("round"),
            envelope.whole("used"),
            envelope.model("model"),
            envelope.state("received"),
            envelope.flag("count_own"),
        )


@dataclass(frozen=True)
class Trained(Message):
    """A client's answer to `Train`. The new state stays on the node."""

    model: Model
    uploads: State
    steps: int
    samples: int
    loss: float
    """The sum of the losses of all steps."""
    forgot: bool
    """Whether the node should have had a state from an earlier round but had none, and began anew."""
    counts: Tree = field(default_factory=dict)
    """If asked for, the client's own evaluation of its model: `counts`, [3, m]."""

    name: ClassVar[str] = "trained"

    def envelope(self) -> Envelope:
        """The message's parts."""
        return Envelope(
            {"forgot": self.forgot},
            {"steps": self.steps, "samples": self.samples, "loss": self.loss},
            {**model_trees("model", self.model), **state_trees("uploads", self.uploads), "counts": self.counts},
        )

    @classmethod
    def read(cls, envelope: Envelope) -> Self:
        """The message that has these parts."""
        return cls(
            envelope.model("model"),
            envelope.state("uploads"),
            envelope.whole("steps"),
            envelope.whole("samples"),
            envelope.real("loss"),
            envelope.flag("forgot"),
            envelope.tree("counts"),
        )


@dataclass(frozen=True)
class Measure(Message):
    """The server asks a worker to evaluate clients' models on its own samples."""

    run: RunSpec
    worker: int
    models: dict[int, Model]
    """By client."""
    nonce: str
    """Never twice the same: what the masks of this exchange are drawn from besides the workers' secrets."""
    peers: dict[int, dict[int, str]] = field(default_factory=dict)
    """Where only sums are to be told: the public keys of each client's other workers, by worker."""

    name: ClassVar[str] = "measure"
    kind: ClassVar[str] = "evaluate.measure"

    def envelope(self) -> Envelope:
        """The message's parts."""
        models = {
            name: tree for k, model in self.models.items() for name, tree in model_trees(f"of/{k}", model).items()
        }
        values = {"run": self.run.text(), "worker": self.worker, "peers": json.dumps(self.peers), "nonce": self.nonce}
        return Envelope(values, trees=models)

    @classmethod
    def read(cls, envelope: Envelope) -> Self:
        """The message that has these parts."""
        models = {int(name): model for name, model in envelope.models("of").items()}
        peers = {
            int(client): {int(worker): str(key) for worker, key in keys.items()}
            for client, keys in json.loads(envelope.text("peers")).items()
        }
        return cls(RunSpec.of(envelope.text("run")), envelope.whole("worker"), models, envelope.text("nonce"), peers)


@dataclass(frozen=True)
class Measured(Message):
    """A worker's answer to `Measure`: for each client Z, TP and T, [3, m]; masked where only sums are told."""

    counts: Tree
    """By client."""

    name: ClassVar[str] = "measured"

    def envelope(self) -> Envelope:
        """The message's parts."""
        return Envelope(trees={"counts": self.counts})

    @classmethod
    def read(cls, envelope: Envelope) -> Self:
        """The message that has these parts."""
        return cls(envelope.tree("counts"))


@dataclass(frozen=True)
class Evaluate(Message):
    """The server asks what global models are worth to a client."""

    run: RunSpec
    client: int
    how: str
    """`expected`: from the recalls and the client's class mix; `own`: on its training samples; `held-out`: on the
    samples that it held out, of which it also tells the confusion matrix."""
    models: list[Model] = field(default_factory=list)
    recalls: Tree = field(default_factory=dict)
    """`recalls` [models, m], instead of the models."""

    name: ClassVar[str] = "evaluate"
    kind: ClassVar[str] = "evaluate"

    def envelope(self) -> Envelope:
        """The message's parts."""
        models = {
            name: tree
            for place, model in enumerate(self.models)
            for name, tree in model_trees(f"model/{place}", model).items()
        }
        values = {"run": self.run.text(), "client": self.client, "how": self.how}
        return Envelope(values, trees={**models, "recalls": self.recalls})

    @classmethod
    def read(cls, envelope: Envelope) -> Self:
        """The message that has these parts."""
        models = envelope.models("model")
        return cls(
            RunSpec.of(envelope.text("run")),
            envelope.whole("client"),
            envelope.text("how"),
            [models[name] for name in sorted(models, key=int)],
            envelope.tree("recalls"),
        )


@dataclass(frozen=True)
class Evaluated(Message):
    """A client's answer to `Evaluate`."""

    results: Tree
    """`accuracy` [models]; for `held-out` also `confusion` [models, m, m] and `loss` [models], the mean."""

    name: ClassVar[str] = "evaluated"

    def envelope(self) -> Envelope:
        """The message's parts."""
        return Envelope(trees={"results": self.results})

    @classmethod
    def read(cls, envelope: Envelope) -> Self:
        """The message that has these parts."""
        return cls(envelope.tree("results"))
