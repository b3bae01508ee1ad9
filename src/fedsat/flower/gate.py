"""The gate of a federation: the only part of it that other machines can reach.

Flower's SuperLink serves everything on one port: messages to nodes, but also the commands of `flwr` and the tasks of
its own processes, which ask for no password. Whoever reaches that port can run code on the server and on all nodes.
Therefore the SuperLink listens on this machine only, and the gate, which listens for nodes, passes on what a node needs
and only for keys that the operator has put into a folder:

    a node -- TLS --> gate (0.0.0.0:9092) -- TLS --> SuperLink (127.0.0.1:8000) <-- commands of the operator

The gate does not forward a request unchanged. It writes a new one, with a known path, some of the headers, and a body
of bounded size. The SuperLink also checks the signature of the node's key (`--enable-supernode-auth`).
"""

from __future__ import annotations

import base64
import json
import logging
import ssl
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from cryptography.hazmat.primitives import serialization

log = logging.getLogger("fedsat")

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

REQUESTS = frozenset(
    f"/v1/fleet/{name}"
    for name in (
        "activate-node",
        "deactivate-node",
        "send-node-heartbeat",
        "pull-messages",
        "push-messages",
        "get-run",
        "get-fab",
        "push-object",
        "pull-object",
        "confirm-message-received",
    )
)
"""The requests of a SuperNode with a key. Nodes cannot register themselves; the operator does that."""

HEALTH = "/health"

PUBLIC_KEY = "flwr-public-key"
"""The header with the node's public key (PEM, base64). The SuperLink verifies that the node has the private key."""

FORBIDDEN = 10
"""Flower's error code for a forbidden action. (Its nodes interpret the status 403 as the end of the run.)"""

HEADERS = ("content-type", "content-length", "accept", "flwr-")
"""The headers that are passed on, by the beginning of their names."""

LARGEST_BODY = 2**26
"""Largest size of a request in bytes. Flower sends arrays in pieces of at most 5 MiB."""

CONNECTIONS = 1024
"""Largest number of open connections; further ones are refused with status 503."""

TIMEOUT = 60.0
"""Seconds without any progress after which a request fails."""


class TooLargeError(Exception):
    """The body of a request is larger than `LARGEST_BODY`."""


@dataclass
class Keys:
    """The nodes that may pass: those whose public key (`*.pub`, as `ssh-keygen` writes it) is in a folder.

    The folder is read again when it changes. A node whose file is deleted is refused from then on.
    """

    folder: Path
    _known: frozenset[bytes] = frozenset()
    _seen: frozenset[tuple[str, int, int]] = frozenset()

    def known(self) -> frozenset[bytes]:
        """Return the keys in the folder, as nodes send them."""
        files = {file: file.stat() for file in self.folder.glob("*.pub")}
        seen = frozenset((file.name, stat.st_mtime_ns, stat.st_size) for file, stat in files.items())
        if seen != self._seen:
            self._known, self._seen = frozenset(filter(None, map(header_of, files))), seen
        return self._known


def header_of(file: Path) -> bytes | None:
    """Return the public key in a file as it appears in the header of a node's requests, or None."""
    try:
        key = serialization.load_ssh_public_key(file.read_bytes())
    except (OSError, ValueError) as error:
        log.warning("gate: %s is not a public key as ssh-keygen writes it: %s", file.name, error)
        return None
    pem = key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    return base64.b64encode(pem)


@dataclass
class Gate:
    """An ASGI application that passes the requests of known nodes on to the SuperLink, and refuses all others."""

    superlink: httpx.AsyncClient
    keys: Keys
    _refused: set[tuple[str, str]] = field(default_factory=set)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            raise RuntimeError(f"the gate does not serve {scope['type']}")
        if why := self._refusal(scope):
            self._log(scope, why)
            await _answer(send, 404, why)
            return
        try:
            response = await self._ask(scope, receive)
        except TooLargeError:
            await _answer(send, 413, f"a request has at most {LARGEST_BODY} bytes")
        except (httpx.HTTPError, httpx.StreamError) as error:
            log.warning("gate: the SuperLink does not answer: %s", type(error).__name__)
            await _answer(send, 502, "the SuperLink does not answer")
        else:
            await _pass_back(response, send)

    def _refusal(self, scope: Scope) -> str:
        """Return why a request is refused, or an empty text."""
        if (scope["method"], scope["path"]) == ("GET", HEALTH):
            return ""
        if scope["method"] != "POST" or scope["path"] not in REQUESTS or scope["query_string"]:
            return "this is not open to nodes; a node needs a key (--auth-supernode-private-key)"
        claimed = [value for name, value in scope["headers"] if name == PUBLIC_KEY.encode()]
        if len(claimed) != 1 or claimed[0] not in self.keys.known():
            return "the key is unknown; the operator must put its .pub file into the server's folder of keys"
        return ""

    async def _ask(self, scope: Scope, receive: Receive) -> httpx.Response:
        """Send the request to the SuperLink, and return its response before the body."""
        headers = [(name, value) for name, value in scope["headers"] if name.decode("latin-1").startswith(HEADERS)]
        content = None if scope["method"] == "GET" else _body(receive)
        request = self.superlink.build_request(scope["method"], scope["path"], headers=headers, content=content)
        return await self.superlink.send(request, stream=True)

    def _log(self, scope: Scope, why: str) -> None:
        """Log a refusal, once for each address and reason, so that nobody can fill the log."""
        address = (scope.get("client") or ("unknown",))[0]
        if len(self._refused) < CONNECTIONS and (address, why) not in self._refused:
            self._refused.add((address, why))
            log.warning("gate: refused %s %.80r from %s: %s", scope["method"], scope["path"], address, why)


_CONNECTION = frozenset({b"connection", b"keep-alive", b"transfer-encoding", b"server", b"date"})
"""Headers of a response that belong to one connection."""


async def _body(receive: Receive) -> AsyncIterator[bytes]:
    size, more = 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise httpx.StreamClosed
        size += len(message.get("body", b""))
        if size > LARGEST_BODY:
            raise TooLargeError
        more = message.get("more_body", False)
        yield message.get("body", b"")


async def _pass_back(response: httpx.Response, send: Send) -> None:
    """Send the SuperLink's response to the node."""
    try:
        kept = [(name, value) for name, value in response.headers.raw if name.lower() not in _CONNECTION]
        await send({"type": "http.response.start", "status": response.status_code, "headers": kept})
        async for piece in response.aiter_raw():
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})
    finally:
        await response.aclose()


async def _answer(send: Send, status: int, why: str) -> None:
    """Refuse a request with an error as Flower writes it, so that the node shows the reason."""
    text = json.dumps({"code": FORBIDDEN, "detail": why}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(text)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": text})


def open_gate(
    superlink: str, keys: Keys, authority: Path, certificate: Path, key: Path, host: str, port: int
) -> uvicorn.Server:
    """Return the server of the gate; `superlink` is an address on this machine such as `127.0.0.1:8000`."""
    verify = ssl.create_default_context(cafile=str(authority))
    client = httpx.AsyncClient(
        base_url=f"https://{superlink}",
        verify=verify,
        timeout=TIMEOUT,
        limits=httpx.Limits(max_connections=CONNECTIONS),
        trust_env=False,  # the environment's proxy cannot reach addresses on this machine
    )
    return uvicorn.Server(
        uvicorn.Config(
            Gate(client, keys),
            host,
            port,
            ssl_certfile=certificate,
            ssl_keyfile=str(key),
            proxy_headers=False,  # log the real address, not the one that a client claims to have
            server_header=False,
            access_log=False,
            log_level="warning",
            lifespan="off",
            ws="none",
            limit_concurrency=CONNECTIONS,
            timeout_graceful_shutdown=2,
        )
    )


if __name__ == "__main__":
    _superlink, _host, _port, *_files = sys.argv[1:]
    _keys, _authority, _certificate, _key = map(Path, _files)
    open_gate(_superlink, Keys(_keys), _authority, _certificate, _key, _host, int(_port)).run()
