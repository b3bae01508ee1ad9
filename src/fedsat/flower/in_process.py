"""Nodes in this process, without a network: for tests, benchmarks and debugging."""

from __future__ import annotations

from collections.abc import Iterable

from flwr.app import Context, RecordDict

from fedsat.flower.client import answer
from fedsat.flower.node_data import NodeConfig
from fedsat.flower.transport import Failure, Reply, Request

FIRST_NODE = 1000
"""Node IDs start here, so that they cannot be confused with client numbers."""


class InProcessNodes:
    """A `Transport` whose nodes handle requests immediately. They keep their contexts, as a SuperNode does."""

    def __init__(self, *node_configs: NodeConfig) -> None:
        self.contexts: dict[int, Context] = {}
        self._replies: dict[str, Reply] = {}
        self._started, self._sent = 0, 0
        for config in node_configs:
            self.join(config)

    def join(self, config: NodeConfig) -> int:
        """Start a node and return its ID."""
        node = FIRST_NODE + self._started
        self._started += 1
        self.contexts[node] = Context(0, node, dict(config), RecordDict(), {})
        return node

    def leave(self, node: int) -> None:
        """Remove a node and its context."""
        del self.contexts[node]

    def nodes(self) -> set[int]:
        """Return the nodes that are connected."""
        return set(self.contexts)

    def send(self, request: Request) -> str | None:
        """Let the node handle the request, and store its reply."""
        request_id = f"{self._sent}"
        self._sent += 1
        reply = self.reply(request)
        if reply is not None:
            self._replies[request_id] = reply
        return request_id

    def receive(self, request_ids: Iterable[str]) -> dict[str, Reply]:
        """Return the replies to these requests, each once."""
        return {key: self._replies.pop(key) for key in request_ids if key in self._replies}

    def forget(self, request_ids: Iterable[str]) -> None:
        """Drop the replies to these requests."""
        for key in request_ids:
            self._replies.pop(key, None)

    def reply(self, request: Request) -> Reply | None:
        """Return the node's reply, or None if there is none."""
        context = self.contexts.get(request.node)
        if context is None:
            return Failure("the node is not connected")
        return answer(request.kind, request.content, context)
