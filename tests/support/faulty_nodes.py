"""In-process nodes with injected faults."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from flwr.app import RecordDict

from fedsat.flower.in_process import InProcessNodes
from fedsat.flower.node_data import NodeConfig
from fedsat.flower.transport import Failure, Reply, Request

LENIENT = Path(__file__).with_name("agreement.toml")
"""An agreement for tests with small data; nodes report the texts of errors."""

Fault = Callable[[Request, RecordDict], RecordDict | None]
"""Maps a request and the honest reply to what the node sends instead; None for no reply."""


class FaultyNodes(InProcessNodes):
    """In-process nodes that can be made faulty, with a record of all requests."""

    def __init__(self, *node_configs: NodeConfig) -> None:
        self.faults: dict[int, Fault] = {}
        """The fault of each faulty node."""
        self.requests: list[tuple[int, str]] = []
        """Node and message type of every request."""
        self.last: dict[str, Request] = {}
        """The last request of each type."""
        super().__init__(*node_configs)

    def join(self, config: NodeConfig) -> int:
        """Start a node and return its ID; unless it has another agreement, it accepts small samples and batches."""
        return super().join({"agreement": str(LENIENT), **config})

    def reply(self, request: Request) -> Reply | None:
        """Return the node's reply after its fault."""
        self.requests.append((request.node, request.kind))
        self.last[request.kind] = request
        honest = super().reply(request)
        if request.node in self.faults and honest is not None and not isinstance(honest, Failure):
            return self.faults[request.node](request, honest)
        return honest


def wait_until(condition: Callable[[], bool], seconds: float = 30.0, what: str = "") -> None:
    """Wait for a condition, and fail if it is not true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
        time.sleep(0.05)
