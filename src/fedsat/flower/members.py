"""The federation as the server knows it: which node is which client, and how they are asked.

Nodes may join late, leave, and come back under another number of Flower's. New ones are asked who they are while the
work goes on, so that nobody waits for them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from fedsat.flower.checks import RefusedError, check_moments
from fedsat.flower.exchange import Answer, Exchange, Failure
from fedsat.flower.messages import Card, Hello
from fedsat.flower.records import Message, MessageError

log = logging.getLogger("flwr")
"""Flower shows its own log to whoever started the run."""

PAUSE = 0.2
"""Seconds between looks for new nodes while waiting for them."""

Reply = TypeVar("Reply", bound=Message)
Checked = TypeVar("Checked")


@dataclass
class Members:
    """Clients and their nodes, and the record of those who did not do what they were asked."""

    exchange: Exchange
    hello: Hello
    clients: int
    """N, the clients of the federation."""
    shape: tuple[int, ...] | None = None
    """The shape of a sample; the first node's, where the server has no data to know it from."""
    round: int = 0
    """The round that is being played."""
    nodes: dict[int, int] = field(default_factory=dict)
    """The node of each client that is there."""
    cards: dict[int, Card] = field(default_factory=dict)
    """The last card of each client that ever was there."""
    _asked: set[int] = field(default_factory=set)
    _queue: dict[int, Card] = field(default_factory=dict)
    _silent: set[int] = field(default_factory=set)
    _notes: list[dict[str, Any]] = field(default_factory=list)

    def ask(
        self,
        stage: str,
        questions: Mapping[int, Message],
        kind: type[Reply],
        check: Callable[[int, Reply], Checked],
    ) -> dict[int, Checked]:
        """Ask clients; the checked answers of those who gave a good one. The others are named in the record."""
        self.refresh()
        nodes = {client: self.nodes[client] for client in questions if client in self.nodes}
        doubtful = {node for client, node in nodes.items() if client in self._silent}
        asked = {node: questions[client] for client, node in nodes.items()}
        answers = self.exchange.ask(asked, self.round, doubtful)
        accepted: dict[int, Checked] = {}
        for client in questions:
            answer = answers[nodes[client]] if client in nodes else Failure("its node is not connected")
            try:
                accepted[client] = check(client, self._read(client, answer, kind))
            except (RefusedError, MessageError) as error:
                self.remark(client, stage, str(error))
        return accepted

    def remark(self, client: int | None, stage: str, what: str) -> None:
        """Put a word about a client, or about a node that is none yet, into the log and the record of this round."""
        self._notes.append({"client": client, "stage": stage, "why": what})
        log.warning("round %d, %s: %s%s", self.round, stage, "" if client is None else f"client {client}: ", what)

    def take_notes(self) -> list[dict[str, Any]]:
        """The notes since they were last taken."""
        taken, self._notes = self._notes, []
        return taken

    def last_words(self, clients: Iterable[int]) -> str:
        """What was last remarked of each of these clients, as one text."""
        said = {remark["client"]: remark["why"] for remark in self._notes}
        return "; ".join(f"client {client}: {said[client]}" for client in clients if client in said)

    def refresh(self) -> None:
        """See who has come and who has gone, without waiting for anybody."""
        there = self.exchange.nodes()
        for client, node in list(self.nodes.items()):
            if node not in there:
                del self.nodes[client]
                self.remark(client, "members", "its node has left")
        self._asked &= there
        self._queue = {node: card for node, card in self._queue.items() if node in there}
        self.exchange.post(there - self._asked, self.hello)
        self._asked |= there
        for node, answer in self.exchange.collect().items():
            self._introduce(node, answer)
        for node, card in list(self._queue.items()):
            if self._admit(node, card):
                del self._queue[node]

    def wait_for(self, wanted: set[int], seconds: float) -> None:
        """Wait until the clients `wanted` are there, or the time is up."""
        deadline = time.monotonic() + seconds
        self.refresh()
        while not wanted <= self.nodes.keys() and time.monotonic() < deadline:
            time.sleep(PAUSE)
            self.refresh()

    def _read(self, client: int, answer: Answer, kind: type[Reply]) -> Reply:
        """An answer's message; a node that comes in the name of a client who gave none may take its place."""
        if isinstance(answer, Failure):
            self._silent.add(client)
            raise RefusedError(answer.why)
        self._silent.discard(client)
        return kind.unpack(answer)

    def _introduce(self, node: int, answer: Answer) -> None:
        """Read a new node's card."""
        try:
            if isinstance(answer, Failure):
                raise MessageError(answer.why)
            card = Card.unpack(answer)
            self.shape = self.shape or card.shape
            if card.shape != self.shape:
                raise MessageError(f"its samples have the shape {list(card.shape)}, not {list(self.shape)}")
            if card.number >= self.clients:
                raise MessageError(f"it is partition {card.number}; the run has {self.clients} clients")
            if self.hello.run.held_out:
                check_moments(card.moments, channels=card.shape[0])
            self._queue[node] = card
        except (RefusedError, MessageError) as error:
            self.remark(None, "members", f"node {node} cannot take part: {error}")

    def _admit(self, node: int, card: Card) -> bool:
        """Let a node take its place, if that is free or its holder has fallen silent."""
        free = (client for client in range(self.clients) if client not in self.nodes)
        client = card.number if card.number >= 0 else next(free, None)
        if client is None or (client in self.nodes and client not in self._silent):
            return False
        if client in self.cards:
            self.remark(client, "members", f"it is back, as node {node}")
        else:
            log.info("client %d is node %d", client, node)
        self.nodes[client], self.cards[client] = node, card
        self._silent.discard(client)
        return True
