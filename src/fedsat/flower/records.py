"""How messages become Flower's records and back: instructions, numbers, and named trees of tensors.

Reading trusts nothing: a part that is missing, or of another kind than it should be, is a `MessageError`.
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

VERSION = 1
"""Changes whenever a message does; server and nodes with different versions refuse each other."""

HEAD, NUMBERS = "fedsat", "numbers"
"""The names of the ConfigRecord and the MetricRecord of a message."""


class MessageError(FedsatError):
    """A message that is not what it should be."""


@dataclass(frozen=True)
class Envelope:
    """A message as records hold it: instructions, numbers, and named trees of tensors."""

    values: Mapping[str, Any] = field(default_factory=dict)
    numbers: Mapping[str, Any] = field(default_factory=dict)
    trees: Mapping[str, Tree] = field(default_factory=dict)

    def text(self, name: str) -> str:
        """An instruction that is a text."""
        return str(_typed(self.values, name, str))

    def whole(self, name: str) -> int:
        """A whole number, wherever it stands."""
        return int(_typed({**self.values, **self.numbers}, name, int))

    def real(self, name: str) -> float:
        """A number."""
        return float(_typed(self.numbers, name, float))

    def flag(self, name: str) -> bool:
        """A yes or no."""
        return bool(_typed(self.values, name, bool))

    def tree(self, name: str) -> Tree:
        """A tree; trees without tensors are not sent."""
        return self.trees.get(name, {})

    def state(self, prefix: str) -> State:
        """The trees whose names begin with `prefix` and a stroke."""
        start = f"{prefix}/"
        return {name.removeprefix(start): tree for name, tree in self.trees.items() if name.startswith(start)}

    def model(self, name: str) -> Model:
        """Parameters and buffers of one model."""
        return Model(self.tree(f"{name}:params"), self.tree(f"{name}:buffers"))

    def models(self, prefix: str) -> dict[str, Model]:
        """The models whose names begin with `prefix` and a stroke."""
        names = dict.fromkeys(name.rpartition(":")[0] for name in self.trees if name.startswith(f"{prefix}/"))
        return {name.removeprefix(f"{prefix}/"): self.model(name) for name in names}


def _typed(values: Mapping[str, Any], name: str, kind: type) -> Any:
    value = values.get(name)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise MessageError(f"{name!r} is missing or not a {kind.__name__}")
    return value


def model_trees(name: str, model: Model) -> dict[str, Tree]:
    """A model as named trees, as `Envelope.model` reads them."""
    return {f"{name}:params": model.params, f"{name}:buffers": model.buffers}


def state_trees(prefix: str, state: State) -> dict[str, Tree]:
    """A state as named trees, as `Envelope.state` reads them."""
    return {f"{prefix}/{name}": tree for name, tree in state.items()}


class Message:
    """What every message knows: its name, and how it is packed."""

    name: ClassVar[str]
    kind: ClassVar[str] = ""
    """Flower's type of a message that the server sends: which function of the ClientApp gets it."""

    def envelope(self) -> Envelope:
        """The message's parts."""
        raise NotImplementedError

    @classmethod
    def read(cls, envelope: Envelope) -> Self:
        """The message that has these parts."""
        raise NotImplementedError

    def pack(self, packed: dict[int, ArrayRecord] | None = None) -> RecordDict:
        """The message as Flower's records. Trees that are in `packed` already, by identity, are not packed again."""
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
        """The message that records hold; a `MessageError` if they hold another, or a broken one."""
        head = records.config_records.get(HEAD)
        if head is None or head.get("message") != cls.name:
            raise MessageError(f"this is not the message {cls.name!r}")
        if head.get("version") != VERSION:
            raise MessageError(f"version {head.get('version')!r} of the messages; this side speaks version {VERSION}")
        trees = {name: unpack_tree(record) for name, record in records.array_records.items()}
        numbers = records.metric_records.get(NUMBERS, MetricRecord())
        try:
            return cls.read(Envelope(dict(head), dict(numbers), trees))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise MessageError(f"the message {cls.name!r} cannot be read: {error}") from error


def pack_tree(tree: Tree) -> ArrayRecord:
    """Named tensors as named arrays (.npy, never pickled)."""
    return ArrayRecord({name: Array(tensor.detach().cpu().contiguous().numpy()) for name, tensor in tree.items()})


def unpack_tree(record: ArrayRecord) -> Tree:
    """Named arrays as named tensors."""
    try:
        return {name: torch.from_numpy(array.numpy()) for name, array in record.items()}
    except (ValueError, TypeError, OSError, EOFError, MemoryError) as error:
        raise MessageError(f"an array cannot be read: {error}") from error


def size(records: RecordDict) -> int:
    """The bytes of a message's content."""
    return sum(len(name) + record.count_bytes() for name, record in records.items())
