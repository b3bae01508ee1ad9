"""Requests to the clients of a run: which replies are used, and what happens if too few clients reply."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from fedsat.errors import TrainingError
from fedsat.flower.attempts import Attempts
from fedsat.flower.checks import RefusedError
from fedsat.flower.membership import Membership, log
from fedsat.flower.records import Message, MessageError
from fedsat.flower.transport import Failure, Reply

Received = TypeVar("Received", bound=Message)
Checked = TypeVar("Checked")


@dataclass
class Members(Membership):
    """The clients of a run, of which the server requests replies."""

    min_fraction: float = 0.5
    """The share of the sampled clients that must respond. If it is 1, all nodes must respond to every request."""
    retries: int = 0
    """How often those that did not respond are asked again, if too few did."""
    attempts: Attempts = field(default_factory=Attempts)
    """How often the requests of a private round were sent, also before the server was started again."""
    repeated: int = 0
    """How often requests of this round were repeated."""

    @property
    def strict(self) -> bool:
        """Whether no result may be computed without a node, so that failures affect none."""
        return self.min_fraction == 1

    def begin(self, round_number: int) -> None:
        """Begin a round, before its requests are sent. If the server did so before, it repeats them."""
        self.round, self.repeated = round_number, self.attempts.of(round_number)
        self.attempts.write(self.round, self.repeated + 1)

    def repeat(self) -> None:
        """Note that requests of this round are repeated, before they are sent."""
        self.repeated += 1
        self.attempts.write(self.round, self.repeated + 1)

    def insist(
        self,
        stage: str,
        messages: Mapping[int, Message],
        kind: type[Received],
        check: Callable[[int, Received], Checked],
        most: int,
        *,
        needed: int = 0,
    ) -> dict[int, Checked]:
        """Send messages and return the replies, as `request`, but ask again until enough clients have replied.

        Enough are `needed` of them, or all if the members are strict.
        """
        needed, accepted = len(messages) if self.strict else needed, dict[int, Checked]()
        for attempt in range(self.retries + 1):
            missing = {client: message for client, message in messages.items() if client not in accepted}
            if attempt:
                self.repeat()
                log.warning(
                    "round %d, %s again: %d of %d clients responded", self.round, stage, len(accepted), len(messages)
                )
                self.wait_for(missing.keys(), self.exchange.timeout)
            accepted |= self.request(stage, missing, kind, check, most)
            if len(accepted) >= needed:
                return {client: accepted[client] for client in messages if client in accepted}
        why = self.reasons(client for client in messages if client not in accepted)
        raise TrainingError(
            f"round {self.round}, {stage}: {len(accepted)} of {len(messages)} clients responded, but {needed} are "
            f"needed (--min-fraction); {why}"
        )

    def request(
        self,
        stage: str,
        messages: Mapping[int, Message],
        kind: type[Received],
        check: Callable[[int, Received], Checked],
        most: int,
    ) -> dict[int, Checked]:
        """Send messages to clients and return the replies of at most `most` bytes that pass `check`.

        Every other client gets a note.
        """
        self.refresh()
        nodes = {client: self.nodes[client] for client in messages if client in self.nodes}
        unreliable = {node for client, node in nodes.items() if client in self._silent}
        requests = {node: messages[client] for client, node in nodes.items()}
        clients = {node: client for client, node in nodes.items()}
        for node, client in clients.items():
            self.presence.see(client, "working", node)
        self.presence.round, self.presence.stage = self.round, stage
        self.presence.write()

        def replied(node: int) -> None:
            self.presence.see(clients[node], "here", node)

        replies = self.exchange.request(requests, self.round, unreliable, self._present, replied)
        accepted: dict[int, Checked] = {}
        for client in messages:
            reply = replies[nodes[client]] if client in nodes else Failure("its node is not connected")
            try:
                accepted[client] = check(client, self._read(client, reply, kind, most))
            except (RefusedError, MessageError) as error:
                self.note(client, stage, str(error))
        self.presence.write()
        return accepted

    def _present(self) -> set[int]:
        """Return the nodes that are clients now."""
        self.refresh()
        return set(self.nodes.values())

    def _read(self, client: int, reply: Reply, kind: type[Received], most: int) -> Received:
        """Decode a reply. A client without a reply counts as silent, and another node may take its place."""
        if isinstance(reply, Failure):
            self._silent.add(client)
            if client in self.nodes:
                self.presence.see(client, "silent", self.nodes[client])
            raise RefusedError(reply.why)
        self._silent.discard(client)
        return kind.unpack(reply, most)
