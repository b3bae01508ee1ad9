"""Which node is which client, as the server sees it.

Nodes may join late, leave, and rejoin with a different node ID. The server greets new nodes during the rounds, so that
no round waits for them.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass, field, replace
from typing import Any

from fedsat.flower.checks import RefusedError, check_info, check_same
from fedsat.flower.exchange import Exchange
from fedsat.flower.messages import Hello, NodeInfo
from fedsat.flower.presence import Presence
from fedsat.flower.records import MessageError, clean
from fedsat.flower.transport import Failure, Reply

log = logging.getLogger("flwr")
"""Flower shows this log to the user who started the run."""

NOTES = 20
"""Largest number of notes on each client in a round."""

WAITING = 4
"""Largest number of nodes that wait for a place, by the number of clients."""

PAUSE = 0.2
"""Seconds between polls while waiting for nodes."""

LARGEST_INFO = 2**24
"""Largest size of a node's introduction in bytes."""


@dataclass
class Membership:
    """The clients and their nodes, and notes on those that failed."""

    exchange: Exchange
    hello: Hello
    clients: int
    """N, the number of clients."""
    shape: tuple[int, ...] | None = None
    """The shape of a sample; if the server has no data, None until `agree_on_shape`."""
    presence: Presence = field(default_factory=Presence)
    """What is told of the nodes to those who ask."""
    replaceable: Set[int] = frozenset()
    """The clients whose place a node with another key may take."""
    round: int = 0
    """The current round."""
    nodes: dict[int, int] = field(default_factory=dict)
    """The node of each connected client."""
    infos: dict[int, NodeInfo] = field(default_factory=dict)
    """The first introduction of each client that has ever been connected, with the key of its last node."""
    owners: dict[int, int] = field(default_factory=dict)
    """The last node of each client. Where nodes have keys, the SuperLink always gives a key the same node."""
    turned_away: dict[int, str] = field(default_factory=dict)
    """The connected nodes that refused to introduce themselves, or whose introduction was refused, and why."""
    _greeted: set[int] = field(default_factory=set)
    _queue: dict[int, NodeInfo] = field(default_factory=dict)
    _silent: set[int] = field(default_factory=set)
    _notes: list[dict[str, Any]] = field(default_factory=list)

    def note(self, client: int | None, stage: str, why: str) -> None:
        """Add a note on a client, or on a node without a client, to the log and the record of this round.

        The reason may come from a node, so it is shortened, and a node cannot fill the record with notes.
        """
        why = clean(why)
        if len(self._notes) >= NOTES * self.clients:
            return
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
                self.presence.see(client, "gone", node)
                self.note(client, "members", "its node has left")
        self.exchange.forget(self._greeted - connected)
        self._greeted &= connected
        self._queue = {node: info for node, info in self._queue.items() if node in connected}
        self.turned_away = {node: why for node, why in self.turned_away.items() if node in connected}
        self.exchange.post(connected - self._greeted, self.hello)
        self._greeted |= connected
        for node, info in list(self._queue.items()):
            if self._admit(node, info):
                del self._queue[node]
        for node, reply in self.exchange.collect().items():
            self._introduce(node, reply)
        self.presence.write()

    def agree_on_shape(self) -> None:
        """Use the shape of most nodes, or of those with the smallest client if there are several such shapes.

        Nodes with other shapes do not participate.
        """
        shapes = [self.infos[client].shape for client in sorted(self.nodes)]
        if self.shape is None and shapes:
            self.shape = Counter(shapes).most_common(1)[0][0]
            for client, info in list(self.infos.items()):
                if info.shape != self.shape:
                    self.note(client, "members", f"its samples have the shape {list(info.shape)}, not that of most")
                    del self.infos[client]
                    self.nodes.pop(client, None)

    def wait_for(self, wanted: Set[int], seconds: float) -> None:
        """Wait until the clients `wanted` are connected, or the time is up."""
        self._wait(lambda: wanted <= self.nodes.keys(), seconds)

    def wait_for_answers(self, seconds: float) -> None:
        """Wait until as many nodes as there are clients have introduced themselves or refused, or the time is up."""
        self._wait(lambda: len(self.nodes) + len(self.turned_away) >= self.clients, seconds)

    def _wait(self, done: Callable[[], bool], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        self.refresh()
        while not done() and time.monotonic() < deadline:
            time.sleep(PAUSE)
            self.refresh()

    def _introduce(self, node: int, reply: Reply) -> None:
        """Read the introduction of a new node."""
        try:
            if isinstance(reply, Failure):
                raise MessageError(reply.why)
            info = NodeInfo.unpack(reply, LARGEST_INFO)
            check_info(info, self.hello.run, self.clients)
            if self._admit(node, info):
                return
            if len(self._queue) >= WAITING * self.clients:
                raise RefusedError("enough nodes are waiting to become clients")
            self._queue[node] = info
        except (RefusedError, MessageError) as error:
            self._turn_away(node, error)

    def _turn_away(self, node: int, error: Exception) -> None:
        self.turned_away[node] = clean(str(error))
        self.note(None, "members", f"node {node} cannot participate: {error}")

    def _admit(self, node: int, info: NodeInfo) -> bool:
        """Make a node a client; return False if it has to wait.

        It waits while the client has another node, unless that is silent. If this node has the other's key, it is the
        same node, whose process has started again.
        """
        wanted = range(self.clients) if info.number < 0 else [info.number]
        allowed = [client for client in wanted if self._may_be(client, node, info)]
        if not allowed:
            whose = "every client belongs" if info.number < 0 else f"client {info.number} belongs"
            self._turn_away(node, RefusedError(f"{whose} to a node with another key (see replace)"))
            return True
        free = [client for client in allowed if self._is_free(client, info)]
        if not free:
            return False
        client = min(free, key=lambda client: (not self._has_key(client, info), client in self.infos))
        first = self.infos.get(client)
        try:
            if self.shape is not None and info.shape != self.shape:
                raise RefusedError(f"its samples have the shape {list(info.shape)}, not {list(self.shape)}")
            if first is not None:
                check_same(info, first)
        except RefusedError as error:
            self._turn_away(node, error)
            return True
        if first is not None:
            self.note(client, "members", f"it is back, as node {node}")
        else:
            log.info("client %d is node %d", client, node)
        self.nodes[client] = node
        self.presence.see(client, "here", node)
        self.infos[client] = info if first is None else replace(first, key=info.key, lasting=info.lasting)
        self.owners[client] = node
        self._silent.discard(client)
        return True

    def _may_be(self, client: int, node: int, info: NodeInfo) -> bool:
        """Whether a client belongs to a node: it does once a node that keeps its key has been this client."""
        known = self.infos.get(client)
        if known is None or not known.lasting or client in self.replaceable:
            return True
        return known.key == info.key or self.owners.get(client) == node

    def _is_free(self, client: int, info: NodeInfo) -> bool:
        """Whether a client has no node, or one that does not reply or has been started again."""
        if client not in self.nodes:
            return True
        return client == info.number and (client in self._silent or self._has_key(client, info))

    def _has_key(self, client: int, info: NodeInfo) -> bool:
        known = self.infos.get(client)
        return known is not None and known.key == info.key
