"""Encoding of messages as Flower's records: instructions, numbers, and named trees of tensors.

This is the one place where the content of a message is decoded. The sender may be broken or malicious, so sizes are
checked before anything is decoded, an array's header is matched rather than evaluated, and nothing is ever unpickled.
Any fault raises a `MessageError`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from torch import Tensor

from fedsat.algorithms import Model
from fedsat.errors import FedsatError
from fedsat.tree import State, Tree

VERSION = 8
"""Increases whenever a message changes. A server and nodes with different versions refuse each other."""

HEAD, NUMBERS, REQUEST = "fedsat", "numbers", "request"
"""The names of a message's records: instructions, numbers, and the request that it is or answers."""

LONGEST_TEXT = 200
"""Largest number of characters of a text from another machine that are shown or stored."""

LARGEST_MESSAGE = 2**34
"""Largest size of a message in bytes, unless the receiver knows a smaller limit."""

_MAGIC = b"\x93NUMPY\x01\x00"
_ARRAY = re.compile(
    rb"\{'descr': '(?P<dtype>[<|][bfiu][1248])', 'fortran_order': False, "
    rb"'shape': \((?P<shape>|\d{1,12},|\d{1,12}(?:, \d{1,12}){1,7})\), \} *\n"
)
"""The header of a .npy file of version 1.0 as numpy writes it, for at most eight axes."""

_DTYPES = {np.dtype(name).str: np.dtype(name) for name in ("?", "u1", "i1", "i2", "i4", "i8", "f2", "f4", "f8")}


class MessageError(FedsatError):
    """A message cannot be read."""


def clean(text: str) -> str:
    """Return a text from another machine as one short line without control characters."""
    line = " ".join("".join(sign if sign.isprintable() else " " for sign in text[: 10 * LONGEST_TEXT]).split())
    return line if len(line) <= LONGEST_TEXT else f"{line[: LONGEST_TEXT - 1]}…"


@dataclass(frozen=True)
class Envelope:
    """The content of a message: instructions, numbers, and named trees of tensors."""

    values: Mapping[str, Any] = field(default_factory=dict)
    numbers: Mapping[str, Any] = field(default_factory=dict)
    trees: Mapping[str, Tree] = field(default_factory=dict)

    def text(self, name: str) -> str:
        """Return an instruction that is a string."""
        return str(_typed(self.values, name, str))

    def json(self, name: str) -> Any:
        """Return an instruction that is written as JSON."""
        return json.loads(self.text(name))

    def whole(self, name: str) -> int:
        """Return an integer of at most 64 bits, from the instructions or the numbers."""
        value = int(_typed({**self.values, **self.numbers}, name, int))
        if not -(2**63) <= value < 2**63:
            raise MessageError(f"{name!r} is too large")
        return value

    def wholes(self, name: str) -> tuple[int, ...]:
        """Return an instruction that is a list of integers."""
        values = _typed(self.values, name, list)
        if not all(type(value) is int for value in values):
            raise MessageError(f"{name!r} is not a list of integers")
        return tuple(values)

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


def packed_bytes(content: Mapping[int, bytes]) -> str:
    """Return bytes of clients as JSON."""
    return json.dumps({client: part.hex() for client, part in content.items()})


def unpacked_bytes(content: Any) -> dict[int, bytes]:
    """Read the parsed JSON of `packed_bytes`."""
    return {int(client): bytes.fromhex(part) for client, part in content.items()}


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
    def sent_in(cls, records: RecordDict) -> bool:
        """Whether the records are a message of this class."""
        return records.config_records.get(HEAD, ConfigRecord()).get("message") == cls.name

    @classmethod
    def unpack(cls, records: RecordDict, most: int = LARGEST_MESSAGE) -> Self:
        """Read a message of at most `most` bytes from Flower's records.

        A broken or different message raises a `MessageError`, whatever is wrong with it.
        """
        if size(records) > most:
            raise MessageError(f"a message of {size(records):,} bytes; at most {most:,} are read")
        if not cls.sent_in(records):
            raise MessageError(f"not a {cls.name!r} message")
        head = records.config_records[HEAD]
        if head.get("version") != VERSION:
            raise MessageError(
                f"message version {clean(str(head.get('version')))}, expected {VERSION}; "
                "install the same version of fedsat on the server and all nodes"
            )
        try:
            trees = {name: unpack_tree(record) for name, record in records.array_records.items()}
            numbers = records.metric_records.get(NUMBERS, MetricRecord())
            return cls.read(Envelope(dict(head), dict(numbers), trees))
        except MessageError:
            raise
        except Exception as error:  # nothing that another machine sends may stop this one
            raise MessageError(f"cannot read the {cls.name!r} message: {clean(str(error))}") from error


@dataclass(frozen=True)
class Stamp:
    """The request that a message is, or answers: an answer to any other request is refused."""

    round: int
    nonce: str

    def put(self, records: RecordDict) -> None:
        """Write the stamp onto a message."""
        records[REQUEST] = ConfigRecord({"round": self.round, "nonce": self.nonce})

    @staticmethod
    def of(records: RecordDict) -> Stamp | None:
        """Return the stamp of a message, or None if it has none."""
        found = records.config_records.get(REQUEST, ConfigRecord())
        number, nonce = found.get("round"), found.get("nonce")
        return Stamp(number, nonce) if isinstance(number, int) and isinstance(nonce, str) else None


def pack_tree(tree: Tree) -> ArrayRecord:
    """Encode named tensors as named arrays (.npy, never pickled)."""
    return ArrayRecord({name: Array(tensor.detach().cpu().contiguous().numpy()) for name, tensor in tree.items()})


def unpack_tree(record: ArrayRecord) -> Tree:
    """Decode named arrays to named tensors."""
    return {name: unpack_array(array.data) for name, array in record.items()}


def unpack_array(content: bytes) -> Tensor:
    """Decode an array; its header must be one that numpy writes, and its values must fill the rest exactly."""
    start = len(_MAGIC) + 2
    end = start + int.from_bytes(content[len(_MAGIC) : start], "little")
    header = _ARRAY.fullmatch(content[start:end])
    if not content.startswith(_MAGIC) or header is None:
        raise MessageError("cannot read an array: it is not .npy, or not of plain numbers")
    dtype = _DTYPES.get(header["dtype"].decode())
    shape = tuple(int(side) for side in header["shape"].decode().split(",") if side)
    if dtype is None or math.prod(shape) * dtype.itemsize != len(content) - end:
        raise MessageError(f"cannot read an array: {len(content) - end} bytes do not hold {list(shape)} numbers")
    if dtype.kind == "b":  # bytes other than 0 and 1 are not Booleans
        return torch.from_numpy(np.frombuffer(content, np.uint8, offset=end).copy()).reshape(shape) != 0
    return torch.from_numpy(np.frombuffer(content, dtype, offset=end).copy()).reshape(shape)


def size(records: RecordDict) -> int:
    """Return the number of bytes of a message's content, as Flower counts them; Flower itself fails at empty texts."""
    return sum(
        len(name) + sum(len(key) + _bytes(value) for key, value in record.items()) for name, record in records.items()
    )


def _bytes(value: Any) -> int:
    if isinstance(value, Array):
        return len(value.data)
    if isinstance(value, list):
        return sum(map(_bytes, value))
    if isinstance(value, str | bytes):
        return len(value)
    return 1 if isinstance(value, bool) else 8
