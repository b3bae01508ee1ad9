"""Our nodes ask for messages more often than Flower's, and wait until they are let in."""

from __future__ import annotations

import itertools

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedsat[flower]'")

import httpx

from fedsat.flower import admission, supernode


def test_only_the_pauses_of_the_supernode_are_shortened(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(supernode, "pause", slept.append)
    for caller in ("flwr.supernode.start_client_internal", "flwr.supercore.retry.http_retry"):
        exec("sleep(3)", {"__name__": caller, "sleep": supernode.sleep})
    assert slept == [0.2, 3]


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses, which take no time."""
    slept: list[float] = []
    monkeypatch.setattr(admission, "pause", slept.append)
    return slept


def answering(*codes: int) -> httpx.Client:
    """Return a connection to a server that answers with these status codes in turn, and then with the last."""
    left = itertools.chain(codes, itertools.repeat(codes[-1]))
    return httpx.Client(transport=httpx.MockTransport(lambda _: httpx.Response(next(left))))


def activate(client: httpx.Client, address: str) -> int:
    return client.post(address).raise_for_status().status_code


def test_a_node_is_let_in_once_its_predecessor_is_gone(slept: list[float], caplog: pytest.LogCaptureFixture) -> None:
    assert admission.patient(activate)(answering(412, 412, 200), "https://superlink") == 200
    assert slept == [admission.AGAIN] * 2
    assert caplog.text.count("does not let this node in yet; trying again for 180 s") == 1


def test_a_node_gives_up(slept: list[float]) -> None:
    with pytest.raises(httpx.HTTPStatusError, match="412"):
        admission.patient(activate)(answering(412), "https://superlink")
    assert len(slept) == admission.ATTEMPTS - 1
    slept.clear()
    with pytest.raises(httpx.HTTPStatusError, match="404"):
        admission.patient(activate)(answering(404), "https://superlink")
    assert not slept
