"""`fedsat status`: what the nodes of a run are doing."""

from __future__ import annotations

import json
import logging
import re
import socket
from pathlib import Path
from typing import Any

import pytest

from fedsat.cli import main
from fedsat.experiment import train

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedsat[flower]'")


from fedsat.flower.server import prepare
from fedsat.flower.terms import Terms
from tests.flower.test_survival import CLIENTS, TERMS, configure, nodes


def test_a_status_that_cannot_be_written_ends_no_run(
    clouds: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    run = prepare(nodes(clouds, tmp_path / "disk"), configure(clouds), TERMS, tmp_path / "run")
    (tmp_path / "run" / "status.json.part").mkdir()
    run.run_round()
    assert not (tmp_path / "run" / "status.json").exists()
    assert caplog.text.count("status.json cannot be written: Is a directory") == 1
    (tmp_path / "run" / "status.json.part").rmdir()
    run.run_round()
    assert json.loads((tmp_path / "run" / "status.json").read_text())["round"] == 2


def test_the_status_of_nodes(clouds: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Client 0 replies, client 1 is silent, client 2 leaves, and client 3 never joins."""
    grid, out = nodes(clouds, tmp_path / "disk", [0, 1, 2]), tmp_path / "run"
    seen: list[str] = []

    def fault(request: Any, reply: Any) -> Any:
        seen.append(shown(out, capsys))  # the server has sent the last request of this round
        return None

    run = prepare(grid, configure(clouds, per_round=CLIENTS), Terms(timeout=1.5, wait=0.2, min_fraction=0.25), out)
    one, two = (next(n for n, c in grid.contexts.items() if c.node_config["partition-id"] == k) for k in (1, 2))
    grid.faults[one] = lambda request, reply: reply if request.kind == "query.hello" else fault(request, reply)
    grid.leave(two)
    run.run_round()
    assert "round 1, train; the server is running and wrote this 0 s ago" in seen[0]
    assert "working for" in seen[0]
    after = shown(out, capsys)
    for pattern in (rf"0 +{one - 1} +here", rf"1 +{one} +silent since", rf"2 +{two} +gone since", "3 +has not joined"):
        assert re.search(pattern, after), (pattern, after)
    written = json.loads((out / "status.json").read_text())
    written["server"] |= {"pid": 2**22 + 1, "time": written["server"]["time"] - 7300}
    (out / "status.json").write_text(json.dumps(written))
    assert "the server is not running; it wrote this 2 h ago" in shown(out, capsys)
    written["server"]["host"] = "elsewhere"
    (out / "status.json").write_text(json.dumps(written))
    assert "; the server wrote this 2 h ago" in shown(out, capsys)
    train(run)
    written["server"] |= {"host": socket.gethostname()}
    (out / "status.json").write_text(json.dumps(written))
    assert "completed after 4 rounds" in shown(out, capsys)
    (out / "status.json").write_text("{}")
    assert "cannot be read" in shown(out, capsys)
    assert "no status; it does not train on real nodes" in shown(tmp_path / "nowhere", capsys)


def shown(folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit):
        main(["status", str(folder)])
    printed = capsys.readouterr()
    return printed.out + printed.err
