"""Nodes in the test's own process that misbehave where a test asks for it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from flwr.app import Message

from fedsat.flower import loop

Fault = Callable[[Message, Message], Message | None]
"""From a question and the honest answer: what the node sends instead, or None for silence."""


class LoopGrid(loop.LoopGrid):
    """The grid without processes, with faults, and a memory of what was asked."""

    def __init__(self, *node_configs: dict[str, Any]) -> None:
        self.faults: dict[int, Fault] = {}
        self.asked: list[tuple[int, str]] = []
        """Every question: node and type."""
        self.last: dict[str, Message] = {}
        """The last question of each type."""
        super().__init__(*node_configs)

    def answer(self, message: Message) -> Message | None:
        node, kind = message.metadata.dst_node_id, message.metadata.message_type
        self.asked.append((node, kind))
        self.last[kind] = message
        honest = super().answer(message)
        return self.faults[node](message, honest) if node in self.faults and honest is not None else honest


def soon(condition: Callable[[], bool], seconds: float = 30.0, what: str = "") -> None:
    """Wait for a condition; an error if it does not come true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
        time.sleep(0.05)
