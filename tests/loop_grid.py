"""A federation without processes: Flower's grid whose nodes answer at once, and misbehave where a test asks for it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from fedsat.flower import client_app

Fault = Callable[[Message, Message], Message | None]
"""From a question and the honest answer: what the node sends instead, or None for silence."""


class LoopGrid(Grid):
    """Nodes in this very process. Contexts last as they do on a SuperNode; messages go through Flower's encoding."""

    def __init__(self, *node_configs: dict[str, Any]) -> None:
        self.contexts: dict[int, Context] = {}
        self.faults: dict[int, Fault] = {}
        self.asked: list[tuple[int, str]] = []
        """Every question: node and type."""
        self._replies: dict[str, Message] = {}
        self._last: dict[str, Message] = {}
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = (
            1,
            1,
            1,
        )  # who sends, as Flower's processes set it
        for config in node_configs:
            self.join(config)

    def join(self, config: dict[str, Any]) -> int:
        """Start a node; its number."""
        node = 1000 + len(self.asked) * 10 + len(self.contexts)
        self.contexts[node] = Context(0, node, config, RecordDict(), {})
        return node

    def leave(self, node: int) -> None:
        del self.contexts[node]

    def last(self, kind: str) -> Message:
        """The last question of a type."""
        return self._last[kind]

    def get_node_ids(self) -> list[int]:
        return list(self.contexts)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        return [self._push(message) for message in messages]

    def _push(self, message: Message) -> str:
        node = message.metadata.dst_node_id
        number = f"{len(self.asked)}"
        self.asked.append((node, message.metadata.message_type))
        self._last[message.metadata.message_type] = message
        message.metadata.__dict__["_message_id"] = number
        if node not in self.contexts:
            self._replies[number] = Message(Error(code=3, reason="Node Unavailable"), reply_to=message)
            return number
        try:
            answer = client_app(message, self.contexts[node])
        except Exception as error:  # as Flower does on a node
            answer = Message(Error(code=2, reason=f"{type(error)}:<'{error}'>"), reply_to=message)
        fault = self.faults.get(node)
        given = answer if fault is None else fault(message, answer)
        if given is not None:
            self._replies[number] = given
        return number

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        return [self._replies.pop(number) for number in message_ids if number in self._replies]

    def set_run(self, run: Any) -> None: ...

    @property
    def run(self) -> Any: ...

    def create_message(self, *args: Any, **kwargs: Any) -> Any: ...

    def send_and_receive(self, *args: Any, **kwargs: Any) -> Any: ...


def soon(condition: Callable[[], bool], seconds: float = 30.0, what: str = "") -> None:
    """Wait for a condition; an error if it does not come true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
        time.sleep(0.05)
