"""Replies are downloaded without blocking the server, even if Flower waits for the rest of one."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any, cast

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedsat[flower]'")

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.inflatable import inflatable_utils
from flwr.supercore.inflatable.inflatable_utils import ObjectUnavailableError
from flwr.supercore.task_identity import TaskIdentity

from fedsat.flower import exchange as exchanges
from fedsat.flower import transport as transports
from fedsat.flower.exchange import Exchange
from fedsat.flower.messages import Hello
from fedsat.flower.run_spec import RunSpec
from fedsat.flower.transport import Failure, GridTransport
from tests.support.faulty_nodes import wait_until

HELLO = Hello(RunSpec({}, ("a", "b"), False))


class Uploads:
    """A grid with two nodes. The first was killed while it uploaded its reply, for the rest of which Flower waits."""

    def __init__(self) -> None:
        self.given_up = threading.Event()
        self.asked = list[str]()

    def get_node_ids(self) -> list[int]:
        return [1, 2]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        return [f"to {message.metadata.dst_node_id}" for message in messages]

    def pull_messages(self, message_ids: list[str]) -> list[Message]:
        (asked,) = message_ids
        self.asked.append(asked)
        if asked == "to 1":
            self.given_up.wait(5)
        return [Message(RecordDict({"reply": ConfigRecord({"to": asked})}), 1, "query")]


@pytest.fixture
def grid(monkeypatch: pytest.MonkeyPatch) -> Iterator[Uploads]:
    monkeypatch.setattr(transports, "GRACE", 0.01)
    for name in ("_run_id", "_node_id", "_task_id"):  # without which Flower creates no messages
        monkeypatch.setattr(TaskIdentity, name, 0)
    uploads = Uploads()
    yield uploads
    uploads.given_up.set()


def over(grid: Uploads) -> GridTransport:
    return GridTransport(cast(Grid, grid))


def test_a_reply_that_is_never_completed_holds_up_no_other(grid: Uploads) -> None:
    transport, replies = over(grid), dict[str, Any]()

    def received(count: int) -> bool:
        replies.update(transport.receive({"to 1", "to 2"} - replies.keys()))
        return len(replies) == count

    wait_until(lambda: received(1))
    assert replies["to 2"]["reply"]["to"] == "to 2"
    assert grid.asked.count("to 1") == 1
    grid.given_up.set()
    wait_until(lambda: received(2))
    assert replies["to 1"]["reply"]["to"] == "to 1"


def test_parts_of_a_message_are_asked_for_again_soon(grid: Uploads) -> None:
    """Flower would wait a second."""
    over(grid)
    missing, began = [ObjectUnavailableError("later")] * 2, time.monotonic()

    def pull(part: str) -> bytes:
        if missing:
            raise missing.pop()
        return part.encode()

    assert inflatable_utils.pull_objects(["a"], pull) == {"a": b"a"}
    assert time.monotonic() - began < 0.5


def test_a_forgotten_reply_is_not_returned(grid: Uploads) -> None:
    transport = over(grid)
    assert transport.receive(["to 1"]) == {}
    transport.forget(["to 1", "unknown"])
    grid.given_up.set()
    wait_until(lambda: bool(transport.receive(["to 1"])))
    assert grid.asked == ["to 1"] * 2  # the first download had been dropped


@pytest.mark.parametrize(("timeout", "present", "why"), [(60, {2}, "its node has left"), (0.05, {1, 2}, "no reply in")])
def test_the_server_does_not_wait_for_the_rest_of_a_reply(
    timeout: float, present: set[int], why: str, grid: Uploads, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchanges, "LOOK", 0.0)
    reply = Exchange(over(grid), timeout).request({1: HELLO}, 1, present=lambda: present)[1]
    assert isinstance(reply, Failure)
    assert why in reply.why
    assert not grid.given_up.is_set()
