"""`fedsat federate` after SIGKILL: with real processes, and what it does when they end."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from torch.testing import assert_close

import fedsat
from fedsat.cli import federate, main
from fedsat.errors import FedsatError
from fedsat.experiment import train
from fedsat.experiment.folder import read_records
from tests.support.killed_federation import Federation, wait_for

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedsat[flower]'")

from fedsat.flower.local_run import EndedError, LocalRun
from fedsat.flower.server import prepare
from fedsat.flower.terms import Terms
from tests.support.faulty_nodes import FaultyNodes

SLOW = 240.0
"""Seconds that a round may take on a busy machine, with everything that a kill costs."""
NODES = 2
SETTINGS = {"partition": "iid", "algorithm": "scaffold", "workers": 1, "epochs": 1, "batch_size": 8, "lr": 0.05}


@pytest.mark.skipif(sys.platform != "linux", reason="processes are found in /proc")
def test_a_node_and_then_everything_is_killed(clouds: Path, tmp_path: Path) -> None:
    arguments = ["--dataset", str(clouds), "--nodes", f"{NODES}", "--min-fraction", "1", "--rounds", "6"]
    arguments += [f"--{name.replace('_', '-')}={value}" for name, value in SETTINGS.items()]
    federation, draw = Federation(tmp_path / "run", arguments), random.Random(0)
    federation.start()
    assert wait_for(lambda: federation.rounds >= 1 and federation.kill("node", draw), SLOW)
    before = federation.rounds
    assert wait_for(lambda: federation.rounds > before, SLOW)
    assert federation.kill("all", draw)
    recorded = federation.rounds
    assert 1 < recorded < 6
    federation.start()
    assert "last round" in federation.finish()

    config = fedsat.configure(dataset=str(clouds), clients=NODES, per_round=NODES, rounds=6, **SETTINGS)
    shares = ({"dataset": str(clouds), "partition-id": client} for client in range(NODES))
    alone = train(prepare(FaultyNodes(*shares), config, Terms(wait=5)))
    saved = load_file(tmp_path / "run" / "model.safetensors")
    for name, tensor in alone.model.params.items():
        assert_close(saved[name], tensor, rtol=1e-5, atol=1e-7)
    records = read_records(tmp_path / "run")
    assert [record.metrics for record in records] == [record.metrics for record in alone.records]
    assert not any("lost its state" in note["why"] for record in records for note in record.left_out)


def test_the_server_is_lost_again_and_again(
    clouds: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A federation starts again after each new round, but not endlessly without one."""
    lines: list[int] = []

    def attempt(console: Any, run: LocalRun, watcher: Any) -> None:
        lines.append(min(len(lines) + 1, 5))
        monkeypatch.setattr(federate, "rounds_in", lambda folder: lines[-1])
        raise EndedError("the SuperLink has ended")

    monkeypatch.setattr(federate, "_attempt", attempt)
    monkeypatch.setattr(federate, "rounds_in", lambda folder: 0)
    with pytest.raises(SystemExit) as ended:
        main(["federate", "--dataset", str(clouds), "--nodes", "2", "--out", str(tmp_path / "run")])
    assert ended.value.code == 1
    assert lines == [1, 2, 3, 4, 5, 5, 5, 5]
    printed = capsys.readouterr()
    assert printed.out.count("the SuperLink has ended; all processes are started again") == 7
    assert f"to continue, use fedsat resume {tmp_path / 'run'}" in " ".join(printed.err.split())


class Ended:
    """A federation whose processes have ended, after they have printed something."""

    SERVER = ("link",)

    def __init__(self, folder: Path, ended: list[str], log: str) -> None:
        self.folder, self._ended, self._log = folder, ended, log

    def ended(self) -> list[str]:
        return self._ended

    def log(self, name: str) -> str:
        return self._log


@pytest.mark.parametrize(
    ("ended", "summary", "log", "error", "why"),
    [
        (["run"], {}, "INFO : fedsat: 1 of 4 nodes joined", FedsatError, "did not start: 1 of 4 nodes joined"),
        (["run"], {}, "Traceback\n  no idea", FedsatError, "did not start: Traceback no idea"),
        (["run"], {"status": "failed", "error": "bad", "rounds": 3}, "", FedsatError, "bad; 3 rounds are saved in"),
        (["run", "link"], {"status": "failed", "error": "no link"}, "", EndedError, "the SuperLink has ended"),
        (["run"], {"status": "interrupted"}, "", EndedError, "the server has ended"),
    ],
)
def test_why_a_run_has_ended(
    tmp_path: Path, ended: list[str], summary: dict[str, Any], log: str, error: type[FedsatError], why: str
) -> None:
    run, federation = LocalRun(tmp_path, fedsat.configure(), {}, None), Ended(tmp_path, ended, log)  # type: ignore[arg-type]
    with pytest.raises(error, match=why) as raised:
        run._check_completed(summary, federation, 0)  # type: ignore[arg-type]
    assert type(raised.value) is error


def test_resume_needs_something_left_to_train(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "node-states").mkdir()
    with pytest.raises(SystemExit):
        main(["resume", str(tmp_path)])
    assert "contains no run" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["resume", str(tmp_path), "--callback", "module:Name"])
    assert "callbacks are only available in simulations" in capsys.readouterr().err
