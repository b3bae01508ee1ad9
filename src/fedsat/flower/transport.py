"""How requests reach the nodes and replies come back: over Flower's grid, or in this process (`in_process`)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from fedsat.flower.records import clean


@dataclass(frozen=True)
class Request:
    """A message from the server to a node. It expires after `ttl` seconds."""

    node: int
    kind: str
    """Flower's message type, which selects the function that handles it on the node."""
    content: RecordDict
    round: int
    ttl: float


@dataclass(frozen=True)
class Failure:
    """The reason why a request has no reply."""

    why: str


Reply = RecordDict | Failure


class Transport(Protocol):
    """Sends requests to nodes and collects the replies."""

    def nodes(self) -> set[int]:
        """Return the nodes that are connected."""

    def send(self, request: Request) -> str | None:
        """Send a request and return its ID, or None if it could not be sent."""

    def receive(self, request_ids: Iterable[str]) -> dict[str, Reply]:
        """Return the replies to these requests that have arrived. Each reply is returned once."""


class GridTransport:
    """Sends requests over the grid that Flower passes to a ServerApp."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid

    def nodes(self) -> set[int]:
        """Return the nodes that are connected."""
        return set(self._grid.get_node_ids())

    def send(self, request: Request) -> str | None:
        """Send a request and return its ID, or None if the SuperLink did not accept it."""
        message = Message(request.content, request.node, request.kind, ttl=request.ttl, group_id=str(request.round))
        return next(iter(self._grid.push_messages([message])), None) or None

    def receive(self, request_ids: Iterable[str]) -> dict[str, Reply]:
        """Return the replies to these requests that have arrived."""
        replies: dict[str, Reply] = {}
        for message in self._grid.pull_messages(list(request_ids)):
            reply = message.content if message.has_content() else Failure(readable_reason(message.error.reason))
            replies[message.metadata.reply_to_message_id] = reply
        return replies


def readable_reason(reason: str | None) -> str:
    """Return the error of a node in readable form; Flower reports exceptions as `<class 'Type'>:<'text'>`."""
    text = clean(reason or "an error without a reason")
    found = re.match(r"<class '([\w.]+)'>:<'(.*)", text)
    if found is None:
        return text
    kind, why = found[1].rpartition(".")[2], found[2].removesuffix("'>")
    return why if kind.endswith("Error") and found[1].startswith("fedsat.") else f"{kind}: {why}"
