"""Asking nodes and collecting what they answer, with a limit on time and a count of bytes."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field

from flwr.app import ArrayRecord, RecordDict
from flwr.app import Message as FlowerMessage
from flwr.serverapp import Grid

from fedsat.flower.records import Message, size

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 1.0
"""Seconds between looks for answers. Flower's own `send_and_receive` looks every 3 s."""


@dataclass(frozen=True)
class Failure:
    """Why there is no answer."""

    why: str


Answer = RecordDict | Failure


@dataclass
class Exchange:
    """The server's way to its nodes."""

    grid: Grid
    timeout: float
    down: int = 0
    """Bytes sent so far."""
    up: int = 0
    """Bytes received so far."""
    _open: dict[str, int] = field(default_factory=dict)
    """Questions sent by `post` that have no answer yet: the node asked, by message."""

    def nodes(self) -> set[int]:
        """The nodes that are connected."""
        return set(self.grid.get_node_ids())

    def ask(self, questions: Mapping[int, Message], group: int, doubtful: Set[int] = frozenset()) -> dict[int, Answer]:
        """Ask nodes and wait until all have answered or the time is up.

        `doubtful` nodes, which were silent before, have no longer than twice the time that the others take.
        """
        packed: dict[int, ArrayRecord] = {}
        waiting: dict[str, int] = {}
        answers: dict[int, Answer] = {}
        for node, question in questions.items():
            message = self._send(node, question, group, packed)
            if message is None:
                answers[node] = Failure("the question could not be sent")
            else:
                waiting[message] = node
        del packed
        began, pause = time.monotonic(), FIRST_PAUSE
        deadline = began + self.timeout
        while True:
            collected = self._collect(waiting)
            for message, answer in collected.items():
                answers[waiting.pop(message)] = answer
            if not waiting or time.monotonic() >= deadline:
                break
            if answers and doubtful >= set(waiting.values()):
                deadline = min(deadline, began + 2 * (time.monotonic() - began))
            if not collected:
                time.sleep(pause)
                pause = min(pause * 1.5, LONGEST_PAUSE)
        late = Failure(f"no answer in {time.monotonic() - began:.1f} s")
        return answers | dict.fromkeys(waiting.values(), late)

    def post(self, nodes: Iterable[int], question: Message) -> None:
        """Ask nodes without waiting; `collect` has their answers when they come."""
        for node in nodes:
            message = self._send(node, question, 0, {})
            if message is not None:
                self._open[message] = node

    def collect(self) -> dict[int, Answer]:
        """The answers to posted questions that have come since."""
        return {self._open.pop(message): answer for message, answer in self._collect(self._open).items()}

    def _send(self, node: int, question: Message, group: int, packed: dict[int, ArrayRecord]) -> str | None:
        """Send one message; its number, or None if it could not be sent."""
        content = question.pack(packed)
        # A node that is busy or away must not begin with a question whose time is up.
        message = FlowerMessage(content, node, question.kind, ttl=self.timeout, group_id=str(group))
        numbers = list(self.grid.push_messages([message]))
        if not numbers or not numbers[0]:
            return None
        self.down += size(content)
        return numbers[0]

    def _collect(self, waiting: Mapping[str, int]) -> dict[str, Answer]:
        if not waiting:
            return {}
        answers: dict[str, Answer] = {}
        for reply in self.grid.pull_messages(list(waiting)):
            if reply.has_content():
                self.up += size(reply.content)
                answers[reply.metadata.reply_to_message_id] = reply.content
            else:
                answers[reply.metadata.reply_to_message_id] = Failure(_in_words(reply.error.reason))
        return answers


def _in_words(reason: str | None) -> str:
    """What went wrong on a node: Flower writes an exception there as <class 'Kind'>:<'text'>."""
    found = re.fullmatch(r"<class '([\w.]+)'>:<'(.*)'>", reason or "", flags=re.DOTALL)
    if found is None:
        return reason or "an error without a reason"
    kind, text = found[1].rpartition(".")[2], found[2].strip()
    return text if kind.endswith("Error") and found[1].startswith("fedsat.") else f"{kind}: {text}"
