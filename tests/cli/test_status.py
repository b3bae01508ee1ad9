"""`fedsat status` without a run lists those on real nodes."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedsat.experiment.folder import ON_NODES
from fedsat.flower.presence import Presence
from tests.support.calling import fedsat
from tests.support.made_runs import make_run


def test_without_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    make_run(Path("runs/simulated"))
    code, _, err = fedsat(capsys, "status")
    assert (code, err) == (2, "fedsat: no run in runs trains on real nodes; give the folder of one\n")
    for name, number in (("first", 3), ("second", 0)):
        folder = Path("runs", name)
        folder.mkdir()
        (folder / ON_NODES).write_text("{}")
        Presence(folder, round=number).write()
    code, out, _ = fedsat(capsys, "status")
    assert code == 0
    first, second = out.splitlines()
    assert first.startswith("runs/first: round 3, waiting for nodes; the server is running")
    assert second.startswith("runs/second: waiting for nodes; the server is running")
