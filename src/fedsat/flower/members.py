"""The server's view of the federation: which node is which client, and how to send requests to clients.

Nodes may join late, leave, and rejoin with a different node ID. The server greets new nodes during the rounds, so that
no round waits for them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from fedsat.flower.checks import RefusedError, check_class_counts, check_moments
from fedsat.flower.exchange import Exchange
from fedsat.flower.messages import Hello, NodeInfo
from fedsat.flower.records import Message, MessageError
from fedsat.flower.transport import Failure, Reply

log = logging.getLogger("flwr")
"""Flower shows this log to the user who started the run."""

PAUSE = 0.2
"""Seconds between polls while waiting for nodes."""

Received = TypeVar("Received", bound=Message)
Checked = TypeVar("Checked")


@dataclass
class Members:
    """The clients and their nodes, and notes on those that failed."""

    exchange: Exchange
    hello: Hello
    clients: int
    """N, the number of clients."""
    shape: tuple[int, ...] | None = None
    """The shape of a sample; if the server has no data, that of the first node."""
    round: int = 0
    """The current round."""
    nodes: dict[int, int] = field(default_factory=dict)
    """The node of each connected client."""
    infos: dict[int, NodeInfo] = field(default_factory=dict)
    """The last introduction of each client that has ever been connected."""
    _greeted: set[int] = field(default_factory=set)
    _queue: dict[int, NodeInfo] = field(default_factory=dict)
    _silent: set[int] = field(default_factory=set)
    _notes: list[dict[str, Any]] = field(default_factory=list)

    def request(
        self,
        stage: str,
        messages: Mapping[int, Message],
        kind: type[Received],
        check: Callable[[int, Received], Checked],
    ) -> dict[int, Checked]:
        """Send messages to clients and return the replies that pass `check`. All other clients are noted."""
        self.refresh()
        nodes = {client: self.nodes[client] for client in messages if client in self.nodes}
        unreliable = {node for client, node in nodes.items() if client in self._silent}
        requests = {node: messages[client] for client, node in nodes.items()}
        replies = self.exchange.request(requests, self.round, unreliable)
        accepted: dict[int, Checked] = {}
        for client in messages:
            reply = replies[nodes[client]] if client in nodes else Failure("its node is not connected")
            try:
                accepted[client] = check(client, self._read(client, reply, kind))
            except (RefusedError, MessageError) as error:
                self.note(client, stage, str(error))
        return accepted

    def note(self, client: int | None, stage: str, why: str) -> None:
        """Add a note on a client, or on a node without a client, to the log and the record of this round."""
        self._notes.append({"client": client, "stage": stage, "why": why})
        log.warning("round %d, %s: %s%s", self.round, stage, "" if client is None else f"client {client}: ", why)

    def take_notes(self) -> list[dict[str, Any]]:
        """Return the notes since the last call."""
        taken, self._notes = self._notes, []
        return taken

    def reasons(self, clients: Iterable[int]) -> str:
        """Return the last note on each of these clients, as one line."""
        last = {note["client"]: note["why"] for note in self._notes}
        return "; ".join(f"client {client}: {last[client]}" for client in clients if client in last)

    def refresh(self) -> None:
        """Update which nodes are connected, without waiting for any of them."""
        connected = self.exchange.nodes()
        for client, node in list(self.nodes.items()):
            if node not in connected:
                del self.nodes[client]
                self.note(client, "members", "its node has left")
        self._greeted &= connected
        self._queue = {node: info for node, info in self._queue.items() if node in connected}
        self.exchange.post(connected - self._greeted, self.hello)
        self._greeted |= connected
        for node, reply in self.exchange.collect().items():
            self._introduce(node, reply)
        for node, info in list(self._queue.items()):
            if self._admit(node, info):
                del self._queue[node]

    def wait_for(self, wanted: set[int], seconds: float) -> None:
        """Wait until the clients `wanted` are connected, or the time is up."""
        deadline = time.monotonic() + seconds
        self.refresh()
        while not wanted <= self.nodes.keys() and time.monotonic() < deadline:
            time.sleep(PAUSE)
            self.refresh()

    def _read(self, client: int, reply: Reply, kind: type[Received]) -> Received:
        """Decode a reply. A client without a reply counts as silent, and another node may take its place."""
        if isinstance(reply, Failure):
            self._silent.add(client)
            raise RefusedError(reply.why)
        self._silent.discard(client)
        return kind.unpack(reply)

    def _introduce(self, node: int, reply: Reply) -> None:
        """Read the introduction of a new node."""
        try:
            if isinstance(reply, Failure):
                raise MessageError(reply.why)
            info = NodeInfo.unpack(reply)
            self.shape = self.shape or info.shape
            if info.shape != self.shape:
                raise MessageError(f"its samples have the shape {list(info.shape)}, not {list(self.shape)}")
            if info.number >= self.clients:
                raise MessageError(f"it is partition {info.number}; the run has {self.clients} clients")
            if self.hello.run.held_out:
                check_moments(info.moments, channels=info.shape[0])
            if self.hello.run.settings["client_accuracy"] == "test-split":
                check_class_counts(info.class_counts, len(self.hello.run.class_names))
            self._queue[node] = info
        except (RefusedError, MessageError) as error:
            self.note(None, "members", f"node {node} cannot participate: {error}")

    def _admit(self, node: int, info: NodeInfo) -> bool:
        """Make a node a client, if the client has no node or its node is silent."""
        free = (client for client in range(self.clients) if client not in self.nodes)
        client = info.number if info.number >= 0 else next(free, None)
        if client is None or (client in self.nodes and client not in self._silent):
            return False
        if client in self.infos:
            self.note(client, "members", f"it is back, as node {node}")
        else:
            log.info("client %d is node %d", client, node)
        self.nodes[client], self.infos[client] = node, info
        self._silent.discard(client)
        return True
