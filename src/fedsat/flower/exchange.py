"""Requests to nodes with a time limit, and a count of the bytes sent and received."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Set
from dataclasses import dataclass, field

from flwr.app import ArrayRecord

from fedsat.flower.messages import Refused
from fedsat.flower.records import Message, MessageError, Stamp, size
from fedsat.flower.transport import Failure, Reply, Request, Transport

SHORTEST, LONGEST, SHARE = 0.05, 1.0, 0.1
"""Seconds between polls for replies, and their share of the time since the requests were sent. Flower's
`send_and_receive` polls every 3 s."""

LOOK = 1.0
"""Seconds between checks of which nodes are still connected."""


@dataclass
class Exchange:
    """Sends the server's messages and waits for the replies."""

    transport: Transport
    timeout: float
    down: int = 0
    """Bytes sent so far."""
    up: int = 0
    """Bytes received so far."""
    _open: dict[str, int] = field(default_factory=dict)
    """The node of each request that was sent by `post` and has no reply yet."""
    _stamps: dict[str, Stamp] = field(default_factory=dict)
    """What the reply to each open request must carry."""

    def nodes(self) -> set[int]:
        """Return the nodes that are connected."""
        return self.transport.nodes()

    def request(
        self,
        messages: Mapping[int, Message],
        round_number: int,
        unreliable: Set[int] = frozenset(),
        present: Callable[[], Set[int]] | None = None,
        replied: Callable[[int], None] | None = None,
    ) -> dict[int, Reply]:
        """Send messages to nodes and wait until all have replied or the timeout has passed.

        Once only `unreliable` nodes are missing, which did not reply before, they get as much time again as the others
        needed. A node that is no longer `present`, which is asked every second, is not waited for. `replied` is called
        with each node whose reply has arrived.
        """
        packed: dict[int, ArrayRecord] = {}
        waiting: dict[str, int] = {}
        replies: dict[int, Reply] = {}
        for node, message in messages.items():
            request_id = self._send(node, message, round_number, packed)
            if request_id is None:
                replies[node] = Failure("the request could not be sent")
            else:
                waiting[request_id] = node
        del packed
        began = time.monotonic()
        deadline, look = began + self.timeout, began + LOOK
        while True:
            received = self._receive(waiting)
            for request_id, reply in received.items():
                node = waiting.pop(request_id)
                replies[node] = reply
                if replied is not None:
                    replied(node)
            if not waiting or time.monotonic() >= deadline:
                break
            if replies and unreliable >= set(waiting.values()):
                deadline = min(deadline, began + 2 * (time.monotonic() - began))
            if present is not None and time.monotonic() >= look:
                here, look = present(), time.monotonic() + LOOK
                gone = [request_id for request_id, node in waiting.items() if node not in here]
                self._drop(gone)
                for request_id in gone:
                    replies[waiting.pop(request_id)] = Failure("its node has left")
            if not received:
                time.sleep(min(max(SHARE * (time.monotonic() - began), SHORTEST), LONGEST))
        self._drop(waiting)
        late = Failure(f"no reply in {time.monotonic() - began:.1f} s")
        return replies | dict.fromkeys(waiting.values(), late)

    def post(self, nodes: Iterable[int], message: Message) -> None:
        """Send a message to nodes without waiting; `collect` returns the replies later."""
        for node in nodes:
            request_id = self._send(node, message, 0, {})
            if request_id is not None:
                self._open[request_id] = node

    def forget(self, nodes: Set[int]) -> None:
        """Stop waiting for replies of these nodes to posted messages."""
        forgotten = [request_id for request_id, node in self._open.items() if node in nodes]
        self._drop(forgotten)
        for request_id in forgotten:
            del self._open[request_id]

    def collect(self) -> dict[int, Reply]:
        """Return the replies to posted messages that have arrived since the last call."""
        return {self._open.pop(request_id): reply for request_id, reply in self._receive(self._open).items()}

    def _send(self, node: int, message: Message, round_number: int, packed: dict[int, ArrayRecord]) -> str | None:
        content, stamp = message.pack(packed), Stamp(round_number, uuid.uuid4().hex)
        stamp.put(content)
        # With the timeout as time to live, a node that is busy or offline never starts on an expired request.
        request_id = self.transport.send(Request(node, message.kind, content, round_number, self.timeout))
        if request_id is not None:
            self.down += size(content)
            self._stamps[request_id] = stamp
        return request_id

    def _drop(self, request_ids: Collection[str]) -> None:
        """Stop waiting for replies to these requests."""
        self.transport.forget(request_ids)
        for request_id in request_ids:
            del self._stamps[request_id]

    def _receive(self, waiting: Mapping[str, int]) -> dict[str, Reply]:
        if not waiting:
            return {}
        replies = self.transport.receive(list(waiting))
        self.up += sum(size(reply) for reply in replies.values() if not isinstance(reply, Failure))
        return {request_id: self._answer(request_id, reply) for request_id, reply in replies.items()}

    def _answer(self, request_id: str, reply: Reply) -> Reply:
        """Return a reply, unless it answers another request: one of an earlier round, or of another node."""
        stamp = self._stamps.pop(request_id)
        if isinstance(reply, Failure):
            return reply
        if Stamp.of(reply) != stamp:
            return Failure("its reply does not answer this request")
        try:
            return Failure(Refused.unpack(reply).why) if Refused.sent_in(reply) else reply
        except MessageError as error:
            return Failure(str(error))
