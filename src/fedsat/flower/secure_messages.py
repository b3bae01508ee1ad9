"""The messages of secure aggregation between the server and the nodes; see `fedsat.secure.protocol`.

introduce   the round                                        -> keys for it                   (query.introduce)
share       the keys of the client's peers                   -> encrypted shares for them     (query.share)
train       as always, and the shares that peers encrypted   -> the masked update             (train)
reveal      which peers sent a masked update                 -> a share for each peer         (query.reveal)
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import ClassVar, Self

from fedsat.flower.messages import Train
from fedsat.flower.records import Envelope, Message, MessageError, packed_bytes, unpacked_bytes
from fedsat.flower.run_spec import RunSpec
from fedsat.secure.protocol import KEY, Introduction

SIGNATURE = 64
"""Bytes of a signature."""


@dataclass(frozen=True)
class Introduce(Message):
    """The server asks a sampled client for its keys of this round."""

    run: RunSpec
    client: int
    round: int
    nonce: str

    name: ClassVar[str] = "introduce"
    kind: ClassVar[str] = "query.introduce"

    @property
    def context(self) -> bytes:
        """What keys are signed with, and masks are derived with: the run, the round, and a nonce."""
        return hashlib.sha256(f"{self.run.text()}\0{self.round}\0{self.nonce}".encode()).digest()

    def envelope(self) -> Envelope:
        """Return the content of the message."""
        return Envelope({"run": self.run.text(), "client": self.client, "round": self.round, "nonce": self.nonce})

    @classmethod
    def read(cls, envelope: Envelope) -> Self:
        """Return the message with this content."""
        return cls(
            RunSpec.of(envelope.text("run")), envelope.whole("client"), envelope.whole("round"), envelope.text("nonce")
        )


@dataclass(frozen=True)
class Introduced(Message):
    """A client's reply to `Introduce`."""

    keys: Introduction
    masked: int
    """The last round in which it sent an update, of which it never sends a second one; 0 if there is none."""

    name: ClassVar[str] = "introduced"

    def envelope(self) -> Envelope:
        """Return the content of the message."""
        return Envelope({"keys": written(self.keys), "masked": self.masked})

    @classmethod
    def read(cls, envelope: Envelope) -> Self:
        """Return the message with this content."""
        return cls(introduction(envelope.text("keys")), envelope.whole("masked"))


@dataclass(frozen=True)
class Share(Message):
    """The server sends a client the keys of its peers."""

    run: RunSpec
    client: int
    peers: dict[int, Introduction]

    name: ClassVar[str] = "share"
    kind: ClassVar[str] = "query.share"

    def envelope(self) -> Envelope:
        """Return the content of the message."""
        keys = {client: written(peer) for client, peer in self.peers.items()}
        return Envelope({"run": self.run.text(), "client": self.client, "peers": json.dumps(keys)})

    @classmethod
    def read(cls, envelope: Envelope) -> Self:
        """Return the message with this content."""
        peers = {int(client): introduction(text) for client, text in envelope.json("peers").items()}
        return cls(RunSpec.of(envelope.text("run")), envelope.whole("client"), peers)


@dataclass(frozen=True)
class Shared(Message):
    """A client's reply to `Share`: the encrypted shares, by the peer that can read them."""

    sealed: dict[int, bytes]

    name: ClassVar[str] = "shared"

    def envelope(self) -> Envelope:
        """Return the content of the message."""
        return Envelope({"sealed": packed_bytes(self.sealed)})

    @classmethod
    def read(cls, envelope: Envelope) -> Self:
        """Return the message with this content."""
        return cls(unpacked_bytes(envelope.json("sealed")))


@dataclass(frozen=True)
class Reveal(Message):
    """The server tells a client which of its peers sent a masked update."""

    run: RunSpec
    client: int
    survivors: tuple[int, ...]

    name: ClassVar[str] = "reveal"
    kind: ClassVar[str] = "query.reveal"

    def envelope(self) -> Envelope:
        """Return the content of the message."""
        return Envelope({"run": self.run.text(), "client": self.client, "survivors": list(self.survivors)})

    @classmethod
    def read(cls, envelope: Envelope) -> Self:
        """Return the message with this content."""
        return cls(RunSpec.of(envelope.text("run")), envelope.whole("client"), envelope.wholes("survivors"))


@dataclass(frozen=True)
class Revealed(Message):
    """A client's reply to `Reveal`: a share of one secret of each peer."""

    shares: dict[int, bytes]

    name: ClassVar[str] = "revealed"

    def envelope(self) -> Envelope:
        """Return the content of the message."""
        return Envelope({"shares": packed_bytes(self.shares)})

    @classmethod
    def read(cls, envelope: Envelope) -> Self:
        """Return the message with this content."""
        return cls(unpacked_bytes(envelope.json("shares")))


def bound_of(message: Train) -> bytes:
    """Return a digest of what all clients of a round are asked to compute: the run, the round, the model, and so on."""
    digest = hashlib.sha256(f"{message.run.text()}\0{message.round}".encode())
    trees = {"params": message.model.params, "buffers": message.model.buffers, **message.received}
    for name, tree in sorted(trees.items()):
        for key, tensor in sorted(tree.items()):
            values = tensor.detach().cpu().contiguous()
            digest.update(f"\0{name}\0{key}\0{values.dtype}\0{list(values.shape)}\0".encode())
            digest.update(values.numpy().tobytes())
    return digest.digest()


def written(keys: Introduction) -> str:
    """Return public keys and their signature in hex."""
    return (keys.content + keys.signature).hex()


def introduction(text: str) -> Introduction:
    """Read what `written` returned."""
    content = bytes.fromhex(text)
    if len(content) not in (3 * KEY, 3 * KEY + SIGNATURE):
        raise MessageError(f"{len(content)} bytes are no public keys")
    return Introduction(content[:KEY], content[KEY : 2 * KEY], content[2 * KEY : 3 * KEY], content[3 * KEY :])
