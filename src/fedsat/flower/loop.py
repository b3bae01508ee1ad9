"""A federation without processes or network: nodes that answer in this very process. Where to set a breakpoint."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from fedsat.flower.client import app
from fedsat.flower.node_data import NodeConfig

FIRST_NODE = 1000
"""Numbers of nodes are no clients' numbers, as in Flower."""


class LoopGrid(Grid):
    """Flower's grid with the nodes inside. Their contexts last from one message to the next, as on a SuperNode."""

    def __init__(self, *node_configs: NodeConfig) -> None:
        self.contexts: dict[int, Context] = {}
        self._replies: dict[str, Message] = {}
        self._started, self._asked = 0, 0
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1  # as Flower's processes set it
        for config in node_configs:
            self.join(config)

    def join(self, config: NodeConfig) -> int:
        """Start a node; its number."""
        node = FIRST_NODE + self._started
        self._started += 1
        self.contexts[node] = Context(0, node, dict(config), RecordDict(), {})
        return node

    def leave(self, node: int) -> None:
        """Let a node vanish, with all that it kept."""
        del self.contexts[node]

    def get_node_ids(self) -> list[int]:
        """The nodes that are there."""
        return list(self.contexts)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Have each message answered at once."""
        return [self._push(message) for message in messages]

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """The answers to these messages, each once."""
        return [self._replies.pop(number) for number in message_ids if number in self._replies]

    def _push(self, message: Message) -> str:
        number = f"{self._asked}"
        self._asked += 1
        message.metadata.__dict__["_message_id"] = number
        reply = self.answer(message)
        if reply is not None:
            self._replies[number] = reply
        return number

    def answer(self, message: Message) -> Message | None:
        """What a node answers; errors become error messages, as on a SuperNode. None: nothing comes."""
        context = self.contexts.get(message.metadata.dst_node_id)
        if context is None:
            return Message(Error(code=3, reason="the node is not connected"), reply_to=message)
        try:
            return app(message, context)
        except Exception as error:
            return Message(Error(code=2, reason=f"{type(error)}:<'{error}'>"), reply_to=message)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Flower's own way to ask."""
        del timeout
        return self.pull_messages(self.push_messages(messages))

    def set_run(self, run: Any) -> None:
        """There is only one."""

    @property
    def run(self) -> Any:
        """There is only one."""
        return None

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        """Flower has given this up for `Message(...)`."""
        raise NotImplementedError
