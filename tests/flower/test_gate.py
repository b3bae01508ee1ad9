"""The gate passes on what known nodes ask for, and nothing else. Here, the SuperLink is a function."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedsat[flower]'")

import httpx
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from fedsat.flower import gate
from fedsat.flower.gate import REQUESTS, Gate, Keys, header_of

PULL = "/v1/fleet/pull-messages"


def write_key(file: Path) -> str:
    """Write a new public key as `ssh-keygen` does, and return the header of its node."""
    key = ec.generate_private_key(ec.SECP384R1()).public_key()
    file.write_bytes(key.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH))
    header = header_of(file)
    assert header is not None
    return header.decode()


class Link:
    """A SuperLink that answers every request, and remembers those that reach it."""

    def __init__(self) -> None:
        self.requests: list[httpx.Request] = []

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        await request.aread()
        self.requests.append(request)
        return httpx.Response(200, content=pieces(), headers={"flwr-note": "kept"})


async def pieces() -> AsyncIterator[bytes]:
    yield b"an"
    yield b"swer"


@pytest.fixture
def link() -> Link:
    return Link()


@pytest.fixture
def node(tmp_path: Path) -> str:
    """The header of a node whose key the gate knows."""
    return write_key(tmp_path / "node-0.pub")


@pytest.fixture
def ask(link: Link, tmp_path: Path) -> Iterator[Callable[..., httpx.Response]]:
    """Send a request to the gate."""
    opened = Gate(httpx.AsyncClient(base_url="https://link", transport=httpx.MockTransport(link)), Keys(tmp_path))

    async def send(method: str, path: str, key: str | None, **others: object) -> httpx.Response:
        others.setdefault("headers", [] if key is None else [("flwr-public-key", key)])
        async with httpx.AsyncClient(base_url="https://gate", transport=httpx.ASGITransport(opened)) as client:
            return await client.request(method, path, **others)  # type: ignore[arg-type]

    with asyncio.Runner() as runner:
        yield lambda *arguments, **others: runner.run(send(*arguments, **others))


def test_a_known_node_is_passed_on(ask: Callable[..., httpx.Response], link: Link, node: str) -> None:
    for path in sorted(REQUESTS):
        headers = [("Flwr-Public-Key", node), ("flwr-signature", "s"), ("content-type", "application/protobuf")]
        unwanted = [("x-forwarded-for", "10.0.0.1"), ("cookie", "c"), ("authorization", "a"), ("host", "elsewhere")]
        answer = ask("POST", path, node, content=b"question", headers=headers + unwanted)
        assert (answer.status_code, answer.content, answer.headers["flwr-note"]) == (200, b"answer", "kept")
        received = link.requests[-1]
        assert (received.url, received.content) == (f"https://link{path}", b"question")
        assert received.headers["flwr-signature"] == "s"
        assert received.headers["host"] == "link"
        assert not received.headers.keys() & {"x-forwarded-for", "cookie", "authorization"}
    assert ask("GET", "/health", None).status_code == 200


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/control/start-run"),
        ("POST", "/v1/control/register-node"),
        ("POST", "/v1/runtime/acquire-task"),
        ("POST", "/v1/fleet/register-node"),
        ("POST", "/v1/fleet/unregister-node"),
        ("POST", "/v1/fleet/../control/start-run"),
        ("POST", "/v1/fleet/%2e%2e/control/start-run"),
        ("POST", "//v1/control/start-run"),
        ("POST", PULL + "/"),
        ("POST", PULL + "?x=/v1/control/start-run"),
        ("GET", PULL),
        ("POST", "/health"),
        ("GET", "/docs"),
        ("GET", "/openapi.json"),
    ],
)
def test_nothing_else_is(
    method: str, path: str, ask: Callable[..., httpx.Response], link: Link, node: str, caplog: pytest.LogCaptureFixture
) -> None:
    answer = ask(method, path, node)
    assert (answer.status_code, answer.json()["code"]) == (404, 10)
    assert "this is not open to nodes" in answer.json()["detail"]
    assert not link.requests


def test_only_known_keys(ask: Callable[..., httpx.Response], link: Link, node: str, tmp_path: Path) -> None:
    stranger = write_key(tmp_path / "stranger.key")  # not *.pub
    for key in (None, "", stranger, node[:-4], f"{node},{stranger}"):
        assert "the key is unknown" in ask("POST", PULL, key).json()["detail"]
    both = [("flwr-public-key", node), ("flwr-public-key", stranger)]
    assert ask("POST", PULL, None, headers=both).status_code == 404
    assert not link.requests


def test_keys_come_and_go_with_their_files(
    ask: Callable[..., httpx.Response], node: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    second = write_key(tmp_path / "node-1.pub")
    assert ask("POST", PULL, second).status_code == 200
    (tmp_path / "node-1.pub").unlink()
    assert ask("POST", PULL, second).status_code == 404
    (tmp_path / "node-2.pub").write_text("ssh-rsa not a key")
    assert ask("POST", PULL, node).status_code == 200
    assert "node-2.pub is not a public key" in caplog.text


def test_bodies_are_bounded(
    ask: Callable[..., httpx.Response], link: Link, node: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "LARGEST_BODY", 1000)
    assert ask("POST", PULL, node, content=b"a" * 1000).status_code == 200
    assert ask("POST", PULL, node, content=b"a" * 1001).status_code == 413
    assert len(link.requests) == 1


def test_a_superlink_that_is_gone(tmp_path: Path, node: str, caplog: pytest.LogCaptureFixture) -> None:
    async def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("connection refused")

    async def ask() -> httpx.Response:
        opened = Gate(httpx.AsyncClient(base_url="https://link", transport=httpx.MockTransport(refuse)), Keys(tmp_path))
        async with httpx.AsyncClient(base_url="https://gate", transport=httpx.ASGITransport(opened)) as client:
            return await client.post(PULL, headers={"flwr-public-key": node})

    assert asyncio.run(ask()).status_code == 502  # the node tries again
    assert "the SuperLink does not answer: ConnectError" in caplog.text


def test_refusals_do_not_fill_the_log(
    ask: Callable[..., httpx.Response], node: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    for number in range(20):
        ask("POST", f"/%1b[31m{number}" + "x" * 500, None)
    (line,) = caplog.messages
    assert len(line) < 300
    assert "\x1b" not in line
