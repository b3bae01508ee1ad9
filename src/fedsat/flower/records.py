"""Encoding of messages as Flower's records: instructions, numbers, and named trees of tensors.

Reading checks everything: a missing part, or one of the wrong type, raises a `MessageError`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from fedsat.algorithms import Model
from fedsat.errors import FedsatError
from fedsat.tree import State, Tree

VERSION = 3
"""Increases whenever a message changes. A server and nodes with different versions refuse each other."""

HEAD, NUMBERS = "fedsat", "numbers"
"""The names of the ConfigRecord and the MetricRecord of a message."""


class MessageError(FedsatError):
    """A message cannot be read."""


@dataclass(frozen=True)
class Envelope:
    """The content of a message: instructions, numbers, and named trees of tensors."""

    values: Mapping[str, Any] = field(default_factory=dict)
    numbers: Mapping[str, Any] = field(default_factory=dict)
    trees: Mapping[str, Tree] = field(default_factory=dict)

    def text(self, name: str) -> str:
        """Return an instruction that is a string."""
        return str(_typed(self.values, name, str))

    def whole(self, name: str) -> int:
        """Return an integer, from the instructions or the numbers."""
        return int(_typed({**self.values, **self.numbers}, name, int))

    def real(self, name: str) -> float:
        """Return a number."""
        return float(_typed(self.numbers, name, float))

    def flag(self, name: str) -> bool:
        """Return an instruction that is true or false."""
        return bool(_typed(self.values, name, bool))

    def tree(self, name: str) -> Tree:
        """Return a tree; empty trees are not sent."""
        return self.trees.get(name, {})

    def state(self, prefix: str) -> State:
        """Return the trees whose names start with `prefix` and a slash."""
        start = f"{prefix}/"
        return {name.removeprefix(start): tree for name, tree in self.trees.items() if name.startswith(start)}

    def model(self, name: str) -> Model:
        """Return the parameters and buffers of one model."""
        return Model(self.tree(f"{name}:params"), self.tree(f"{name}:buffers"))

    def models(self, prefix: str) -> dict[str, Model]:
        """Return the models whose names start with `prefix` and a slash."""
        names = dict.fromkeys(name.rpartition(":")[0] for name in self.trees if name.startswith(f"{prefix}/"))
        return {name.removeprefix(f"{prefix}/"): self.model(name) for name in names}


def _typed(values: Mapping[str, Any], name: str, kind: type) -> Any:
    value = values.get(name)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise MessageError(f"{name!r} is missing or not a {kind.__name__}")
    return value


def model_trees(name: str, model: Model) -> dict[str, Tree]:
    """Return a model as named trees, for `Envelope.model` to read."""
    return {f"{name}:params": model.params, f"{name}:buffers": model.buffers}


def state_trees(prefix: str, state: State) -> dict[str, Tree]:
    """Return a state as named trees, for `Envelope.state` to read."""
    return {f"{prefix}/{name}": tree for name, tree in state.items()}


class Message:
    """Base class of all messages."""

    name: ClassVar[str]
    kind: ClassVar[str] = ""
    """Flower's type of a message from the server, which selects the function of the ClientApp that handles it."""

    def envelope(self) -> Envelope:
        """Return the content of the message."""
        raise NotImplementedError

    @classmethod
    def read(cls, envelope: Envelope) -> Self:
        """Return the message with this content."""
        raise NotImplementedError

    def pack(self, packed: dict[int, ArrayRecord] | None = None) -> RecordDict:
        """Return the message as Flower's records. Trees that `packed` already contains, by identity, are reused."""
        packed = {} if packed is None else packed
        envelope = self.envelope()
        records = RecordDict({HEAD: ConfigRecord({"version": VERSION, "message": self.name, **envelope.values})})
        if envelope.numbers:
            records[NUMBERS] = MetricRecord(dict(envelope.numbers))
        for name, tree in envelope.trees.items():
            if tree:
                if id(tree) not in packed:
                    packed[id(tree)] = pack_tree(tree)
                records[name] = packed[id(tree)]
        return records

    @classmethod
    def unpack(cls, records: RecordDict) -> Self:
        """Read a message from Flower's records; raise a `MessageError` if it is broken or a different message."""
        head = records.config_records.get(HEAD)
        if head is None or head.get("message") != cls.name:
            raise MessageError(f"not a {cls.name!r} message")
        if head.get("version") != VERSION:
            raise MessageError(
                f"message version {head.get('version')!r}, expected {VERSION}; "
                "install the same version of fedsat on the server and all nodes"
            )
        trees = {name: unpack_tree(record) for name, record in records.array_records.items()}
        numbers = records.metric_records.get(NUMBERS, MetricRecord())
        try:
            return cls.read(Envelope(dict(head), dict(numbers), trees))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise MessageError(f"cannot read the {cls.name!r} message: {error}") from error


def pack_tree(tree: Tree) -> ArrayRecord:
    """Encode named tensors as named arrays (.npy, never pickled)."""
    return ArrayRecord({name: Array(tensor.detach().cpu().contiguous().numpy()) for name, tensor in tree.items()})


def unpack_tree(record: ArrayRecord) -> Tree:
    """Decode named arrays to named tensors."""
    try:
        return {name: torch.from_numpy(array.numpy()) for name, array in record.items()}
    except (ValueError, TypeError, OSError, EOFError, MemoryError) as error:
        raise MessageError(f"cannot read an array: {error}") from error


def size(records: RecordDict) -> int:
    """Return the number of bytes of a message's content."""
    return sum(len(name) + record.count_bytes() for name, record in records.items())
