"""A node waits until the server lets it in.

Flower connects every key only once. It takes up to a minute to notice that a node was killed, and refuses the node that
is started in its place until then.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TypeVar

import httpx
from flwr.supernode.fleet_http_client import FleetHttpClient

AGAIN = 2.0
"""Seconds between two attempts."""

ATTEMPTS = 90
"""Number of attempts, for three minutes."""

REFUSED = httpx.codes.PRECONDITION_FAILED
"""The SuperLink's status if a node with this key is connected, or if the key is not registered yet."""

log = logging.getLogger("flwr")

pause = time.sleep

Client = TypeVar("Client")
Request = TypeVar("Request")
Response = TypeVar("Response")


def wait_until_admitted() -> None:
    """Let the SuperNode of this process repeat the request to be let in."""
    FleetHttpClient.ActivateNode = patient(FleetHttpClient.ActivateNode)  # type: ignore[assignment, method-assign]


def patient(activate: Callable[[Client, Request], Response]) -> Callable[[Client, Request], Response]:
    """Return a variant of `activate` that tries again while the server refuses the node."""

    def repeated(client: Client, request: Request) -> Response:
        for attempt in range(1, ATTEMPTS):
            try:
                return activate(client, request)
            except httpx.HTTPStatusError as error:
                if error.response.status_code != REFUSED:
                    raise
            if attempt == 1:
                log.warning(
                    "The server does not let this node in yet; trying again for %g s. If the node was killed, the "
                    "server notices that within a minute. Otherwise, another node may be using the same key.",
                    AGAIN * ATTEMPTS,
                )
            pause(AGAIN)
        return activate(client, request)

    return repeated
