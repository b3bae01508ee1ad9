"""How requests reach the nodes and replies come back: over Flower's grid, or in this process (`in_process`)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Protocol

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from fedsat.flower.pulls import ask_again_soon
from fedsat.flower.records import clean

PULLS = 64
"""Largest number of replies that are downloaded at the same time."""

GRACE = 0.5
"""Seconds that a call waits for downloads; a question for a reply that has not arrived takes a few milliseconds."""


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

    def forget(self, request_ids: Iterable[str]) -> None:
        """Drop the replies to these requests, for which `receive` will not be called again."""


class GridTransport:
    """Sends requests over the grid that Flower passes to a ServerApp.

    If a node is killed while it uploads a reply, Flower waits three minutes for the rest of it. So each reply is
    downloaded in a thread of its own, and meanwhile the server does its other work.
    """

    def __init__(self, grid: Grid) -> None:
        ask_again_soon()
        self._grid = grid
        self._threads = ThreadPoolExecutor(PULLS, "pull")
        self._pulls: dict[str, Future[list[Message]]] = {}
        """The download of the reply to each request, or the question whether there is one."""

    def nodes(self) -> set[int]:
        """Return the nodes that are connected."""
        return set(self._grid.get_node_ids())

    def send(self, request: Request) -> str | None:
        """Send a request and return its ID, or None if the SuperLink did not accept it."""
        message = Message(request.content, request.node, request.kind, ttl=request.ttl, group_id=str(request.round))
        return next(iter(self._grid.push_messages([message])), None) or None

    def receive(self, request_ids: Iterable[str]) -> dict[str, Reply]:
        """Return the replies to these requests that have been downloaded."""
        wanted, replies = list(request_ids), dict[str, Reply]()
        for request_id in wanted:
            if request_id not in self._pulls:
                self._pulls[request_id] = self._threads.submit(self._pull, request_id)
        wait([self._pulls[request_id] for request_id in wanted], GRACE)
        for request_id in wanted:
            if self._pulls[request_id].done():
                for message in self._pulls.pop(request_id).result():
                    reply = message.content if message.has_content() else Failure(readable_reason(message.error.reason))
                    replies[request_id] = reply
        return replies

    def forget(self, request_ids: Iterable[str]) -> None:
        """Drop the replies to these requests; a download that has begun ends by itself."""
        for request_id in request_ids:
            pull = self._pulls.pop(request_id, None)
            if pull is not None:
                pull.cancel()

    def _pull(self, request_id: str) -> list[Message]:
        return list(self._grid.pull_messages([request_id]))


def readable_reason(reason: str | None) -> str:
    """Return the error of a node in readable form; Flower reports exceptions as `<class 'Type'>:<'text'>`."""
    text = clean(reason or "an error without a reason")
    found = re.match(r"<class '([\w.]+)'>:<'(.*)", text)
    if found is None:
        return text
    kind, why = found[1].rpartition(".")[2], found[2].removesuffix("'>")
    return why if kind.endswith("Error") and found[1].startswith("fedsat.") else f"{kind}: {why}"
