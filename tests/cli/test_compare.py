"""`fedsat compare`: the same federation for all methods, resuming, several runs at once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest

import fedsat as package
from tests.support.calling import SMALL, fedsat
from tests.support.runs import results


def test_compare_over_seeds_continues_where_it_was(capsys: pytest.CaptureFixture[str]) -> None:
    call = ["compare", *SMALL, "--methods", "fedavg,fedsat", "--target", "10", "--out", "both"]
    code, out, _ = fedsat(capsys, *call)
    assert code == 0
    assert "to 10 %" in out
    assert out.rstrip().endswith("page: both/report.html")
    assert Path("both/report.html").read_text().startswith("<!doctype html>")
    stamp = Path("both/fedavg-seed0/summary.json").stat().st_mtime_ns
    # An interrupted run without a checkpoint is not counted and not touched.
    Path("both/fedsat-seed0/summary.json").write_text('{"status": "interrupted"}')
    code, out, _ = fedsat(capsys, *call, "--seeds", "2")
    assert code == 0
    assert "1 of 4 runs are done already" in out
    assert "±" in out
    assert Path("both/fedavg-seed0/summary.json").stat().st_mtime_ns == stamp
    assert json.loads(Path("both/fedsat-seed0/summary.json").read_text()) == {"status": "interrupted"}
    assert {path.name for path in Path("both").iterdir() if path.is_dir()} == {
        "fedavg-seed0", "fedavg-seed1", "fedsat-seed0", "fedsat-seed0-2", "fedsat-seed1",
    }  # fmt: skip
    code, out, _ = fedsat(capsys, *call, "--seeds", "2")
    assert "4 of 4 runs are done already" in out


def test_compare_with_a_grid(capsys: pytest.CaptureFixture[str]) -> None:
    grid = ["--grid", "gamma=0.5,0.9", "--grid", "lr=0.05"]
    code, out, _ = fedsat(capsys, "compare", *SMALL, "--methods", "fedavg,fedsat", *grid, "--out", "grid")
    assert code == 0
    assert "fedsat, gamma=0.5" in " ".join(out.split())
    assert {path.name for path in Path("grid").iterdir() if path.is_dir()} == {
        "fedavg-lr=0.05-seed0", "fedsat-gamma=0.5-lr=0.05-seed0", "fedsat-gamma=0.9-lr=0.05-seed0",
    }  # fmt: skip


def test_runs_in_processes_have_the_same_results(capsys: pytest.CaptureFixture[str]) -> None:
    def rounds(folder: str, *options: str) -> list[list[dict[str, object]]]:
        wanted = ["--methods", "fedavg,fedsat", "--set", "weighting=pwa", "--set", "workers=3"]
        assert fedsat(capsys, "compare", *SMALL, *wanted, *options, "--out", folder)[0] == 0
        files = sorted(Path(folder).glob("*/metrics.jsonl"))
        return [[{**json.loads(line), "seconds": None} for line in file.read_text().splitlines()] for file in files]

    apart = rounds("apart", "--jobs", "2")
    assert len(apart) == 2
    assert apart == rounds("in turn")


def test_a_setting_goes_to_every_method_that_has_it(capsys: pytest.CaptureFixture[str]) -> None:
    wanted = ["--methods", "fedavg,fedprox,fedsat", "--set", "server_lr=0.5", "--set", "mu=0.3"]
    wanted += ["--set", "objective=psl", "--set", "epsilon2=3"]  # a part, and an option that comes with it
    assert fedsat(capsys, "compare", *SMALL, *wanted, "--rounds", "1", "--out", "all")[0] == 0
    methods = [tomllib.loads(file.read_text())["algorithm"] for file in sorted(Path("all").glob("*/config.toml"))]
    assert [method["server_lr"] for method in methods] == [0.5, 0.5, 0.5]
    assert [method.get("mu") for method in methods] == [None, 0.3, None]
    assert [method["objective"]["epsilon2"] for method in methods] == [3.0, 3.0, 3.0]


@pytest.mark.filterwarnings("default::FutureWarning")
def test_the_former_name_of_methods(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = fedsat(capsys, "compare", "--algorithms", "fedsot")
    note, error = err.splitlines()
    assert note.startswith("fedsat: note: --algorithms is now called --methods; ")
    assert (code, error) == (2, "fedsat: unknown algorithm 'fedsot'; did you mean 'fedsat'?")


OWN = """
import os
from dataclasses import dataclass
from fedsat.algorithms import Algorithm

@dataclass(frozen=True)
class Mine(Algorithm):
    pass

@dataclass(frozen=True)
class Wrong(Algorithm):
    def aggregate(self, server, updates, weights):
        raise ValueError("boom")

@dataclass(frozen=True)
class Killed(Algorithm):
    def aggregate(self, server, updates, weights):
        os._exit(9)  # like a process that the system kills for lack of memory
"""


def test_a_user_defined_method_in_processes(capsys: pytest.CaptureFixture[str]) -> None:
    Path("own_one.py").write_text(OWN)
    call = ["compare", *SMALL, "--jobs", "2", "--out", "own", "--methods"]
    assert fedsat(capsys, *call, "fedavg,own_one:Mine")[0] == 0
    fedavg, own = (json.loads(file.read_text()) for file in sorted(Path("own").glob("*/summary.json")))
    assert own["accuracy"] == fedavg["accuracy"]


def test_an_unexpected_error_in_a_process_names_its_run(capsys: pytest.CaptureFixture[str]) -> None:
    Path("own_two.py").write_text(OWN)
    call = ["compare", *SMALL, "--jobs", "2", "--out", "own", "--methods"]
    code, out, err = fedsat(capsys, *call, "own_two:Wrong,fedavg,fedprox")
    assert (code, err.count("\n")) == (1, 1)
    assert "1 of 3 runs failed: own_two:Wrong-seed0: unexpected ValueError: boom" in err
    assert "page: own/report.html" in out
    code, _, err = fedsat(capsys, *call, "own_two:Killed")
    assert (code, err.count("\n")) == (1, 1)
    assert "the process of a run was killed, perhaps for lack of memory" in err


def test_a_method_that_diverges_does_not_stop_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    grid = ["--grid", "lr=1e30,0.05"]
    code, out, err = fedsat(capsys, "compare", *SMALL, "--methods", "fedavg", *grid, "--out", "both")
    assert (code, err.count("\n")) == (1, 1)
    assert "1 of 2 runs failed: fedavg-lr=1e+30-seed0: round 1, client" in err
    assert "page: both/report.html" in out


def any_left(group: int) -> bool:
    """Whether a process of the group is still running."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_runs_in_processes_are_stopped_together(tmp_path: Path, number: signal.Signals, code: int) -> None:
    wanted = ["--methods", "fedavg,fedprox,fedsat", "--jobs", "2", "--rounds", "100000", "--out", "many"]
    process = subprocess.Popen(
        [sys.executable, "-m", "fedsat", "compare", *wanted],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 60
    files = [tmp_path / "many" / f"{name}-seed0" / "metrics.jsonl" for name in ("fedavg", "fedprox")]
    while not all(file.exists() and file.stat().st_size for file in files):
        assert time.monotonic() < deadline
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.05)
    os.killpg(process.pid, number) if number == signal.SIGINT else process.send_signal(number)  # as a terminal does
    out, err = process.communicate(timeout=60)
    assert process.returncode == code
    if number != signal.SIGKILL:
        assert err == f"fedsat: {'interrupted' if number == signal.SIGINT else 'terminated'}\n"
        assert "0 of 3 runs are done; repeat the command to continue" in out
        for file in files:
            assert json.loads((file.parent / "summary.json").read_text())["status"] == "interrupted"
        assert not (tmp_path / "many" / "fedsat-seed0").exists()
    while any_left(process.pid):
        assert time.monotonic() < deadline + 60


def test_compare_resumes_interrupted_runs(capsys: pytest.CaptureFixture[str]) -> None:
    call = ["compare", *SMALL, "--methods", "fedavg,fedsat", "--checkpoint-every", "1", "--out"]
    fedsat(capsys, *call, "whole")
    assert not Path("whole/fedsat-seed0/checkpoints").exists()  # a completed run has no checkpoint
    settings = tomllib.loads(Path("whole/fedsat-seed0/config.toml").read_text())
    run = package.prepare(package.Config.of(settings), Path("cut/fedsat-seed0"))
    run.run_round()
    run.run_round()
    del run
    code, out, _ = fedsat(capsys, *call, "cut")
    assert code == 0
    assert "note: cut/fedsat-seed0 resumes after round 2 of 3" in out
    assert {path.name for path in Path("cut").iterdir() if path.is_dir()} == {"fedavg-seed0", "fedsat-seed0"}
    assert results(Path("cut/fedsat-seed0")) == results(Path("whole/fedsat-seed0"))
    # A checkpoint that cannot be used is reported, and the run starts again in a new folder.
    run = package.prepare(package.Config.of(settings), Path("bad/fedsat-seed0"))
    run.run_round()
    del run
    Path("bad/fedsat-seed0/checkpoints/round-000001.json").write_text("{}")
    code, out, _ = fedsat(capsys, *call, "bad")
    assert code == 0
    assert "starting again in bad/fedsat-seed0-2\n" in out
    assert results(Path("bad/fedsat-seed0-2")) == results(Path("whole/fedsat-seed0"))


def test_notes_about_runs_in_processes_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    call = ["compare", *SMALL, "--methods", "fedavg,fedsat", "--checkpoint-every", "1", "--out"]
    fedsat(capsys, *call, "whole")
    for name in ("fedavg-seed0", "fedsat-seed0"):
        settings = tomllib.loads(Path(f"whole/{name}/config.toml").read_text())
        run = package.prepare(package.Config.of(settings), Path("cut", name))
        run.run_round()
        del run
    Path("cut/fedavg-seed0/checkpoints/round-000001.json").write_text("{}")
    notes = sorted(line for line in fedsat(capsys, *call, "cut", "--jobs", "2")[1].splitlines() if "note:" in line)
    assert notes[0].startswith("fedavg-seed0  note: cut/fedavg-seed0 cannot be resumed: the checkpoint of round 1")
    assert notes[0].endswith("; starting again in cut/fedavg-seed0-2")
    assert "fedsat-seed0  note: cut/fedsat-seed0 resumes after round 1 of 3" in notes
