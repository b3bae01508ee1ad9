"""Nodes of `fedsat federate` ask for messages more often than Flower's."""

from __future__ import annotations

import pytest

from fedsat.flower import supernode


def test_only_the_pauses_of_the_supernode_are_shortened(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(supernode, "pause", slept.append)
    for caller in ("flwr.supernode.start_client_internal", "flwr.supercore.retry.http_retry"):
        exec("sleep(3)", {"__name__": caller, "sleep": supernode.sleep})
    assert slept == [supernode.LONGEST, 3]
