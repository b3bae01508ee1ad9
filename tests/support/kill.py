"""Kill a run with SIGKILL at random moments, resume it each time, and check that it equals an uninterrupted run.

A quarter of the processes are killed while they start, and the others during a random round. After each kill, all files
must be complete, except for .part files and the last line of metrics.jsonl. A checkpoint is written every round, so
that many kills happen while one is being written.
"""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
import tomllib
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import safe_open

SETTINGS = [
    "--algorithm=fedsat", "--clients=60", "--per-round=6", "--workers=4", "--epochs=1", "--lr=0.05",
    "--classes-per-client=2", "--checkpoint-every=1",
]  # fmt: skip


def results(folder: Path) -> dict[str, Any]:
    """Return all results of a run, without times and without the command and the machine."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    summary = json.loads((folder / "summary.json").read_text())
    for table in (*lines, summary):
        del table["seconds"]
    del summary["made_with"], summary["metrics_sha256"]
    whole = ("config.toml", *sorted(path.name for path in folder.glob("*.safetensors")))
    return {"metrics": lines, "summary": summary, **{name: (folder / name).read_bytes() for name in whole}}


def start(*arguments: str) -> subprocess.Popen[str]:
    """Start fedsat in its own process."""
    command = [sys.executable, "-m", "fedsat", *arguments]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str]) -> None:
    """Wait for a process to end; it must have succeeded or been killed by us."""
    _, error = process.communicate()
    if process.returncode not in (0, -signal.SIGKILL):
        raise SystemExit(f"a process failed with {process.returncode}: {error}")


def look(folder: Path) -> str:
    """Check every file that a killed process left, and return what it was doing."""
    if not (folder / "config.toml").exists():
        return "before the run had a folder"
    tomllib.loads((folder / "config.toml").read_text())
    for path in [*folder.glob("*.json"), *folder.glob("checkpoints/*.json")]:
        json.loads(path.read_text())
    for path in [*folder.glob("*.safetensors"), *folder.glob("checkpoints/*.safetensors")]:
        with safe_open(path, framework="pt") as stored:
            for name in stored.keys():  # noqa: SIM118 (it is no dictionary)
                stored.get_tensor(name)
    *lines, torn = (folder / "metrics.jsonl").read_bytes().split(b"\n")
    recorded = len([json.loads(line) for line in lines])
    if torn:
        return "while a round was recorded"
    if any(folder.rglob("*.part")):
        return "while a file was written"
    kept = [int(path.stem.partition("-")[2]) for path in folder.glob("checkpoints/*.json")]
    return "between record and checkpoint" if recorded > max(kept, default=0) else "during a round"


@dataclass(frozen=True)
class Pace:
    """Return the seconds that a process takes to start, and for a round."""

    start: float
    round: float


def disturb(folder: Path, rounds: int, kills: int, pace: Pace, draw: random.Random) -> Counter[str]:
    """Train a run with this number of kills, or fewer if it completes before; return when they happened."""
    caught: Counter[str] = Counter()
    for number in range(1, kills + 1):
        begun = (folder / "config.toml").exists()
        call = ["resume", str(folder)] if begun else ["run", *SETTINGS, "--rounds", str(rounds), "--out", str(folder)]
        process = start(*call)
        if draw.random() < 0.25:
            wait(process, draw.uniform(0, pace.start))
        else:
            await_rounds(process, folder, draw.randrange(max(1, rounds // kills - 1)))
            wait(process, draw.uniform(0, pace.round))
        process.kill()
        finish(process)
        if (folder / "summary.json").exists():  # the run completed before the kill
            return caught
        where = look(folder)
        caught[where] += 1
        print(f"kill {number}: {where}", flush=True)
    finish(start("resume", str(folder)))
    return caught


def wait(process: subprocess.Popen[str], seconds: float) -> None:
    """Let a process run for this time, unless it ends before."""
    with suppress(subprocess.TimeoutExpired):
        process.wait(seconds)


def await_rounds(process: subprocess.Popen[str], folder: Path, rounds: int) -> None:
    """Wait until a process has truncated the records that it repeats, and recorded this number of rounds plus one."""
    path = folder / "metrics.jsonl"
    before = path.stat().st_mtime_ns if path.exists() else 0
    first: int | None = None
    while process.poll() is None:
        if path.exists() and path.stat().st_mtime_ns > before:
            recorded = path.read_bytes().count(b"\n")
            first = recorded if first is None else first
            if recorded > first + rounds:
                return
        time.sleep(0.002)


def kill_and_resume(folder: Path, rounds: int, kills: int, draw: random.Random) -> Counter[str]:
    """Train an uninterrupted run and a killed one in `folder`; fail if their results differ."""
    began = time.monotonic()
    finish(start("run", *SETTINGS, "--rounds", str(rounds), "--out", str(folder / "whole")))
    training = float(json.loads((folder / "whole" / "summary.json").read_text())["seconds"])
    pace = Pace(time.monotonic() - began - training, training / rounds)
    caught = disturb(folder / "killed", rounds, kills, pace, draw)
    if results(folder / "killed") != results(folder / "whole"):
        raise SystemExit(f"the runs in {folder} differ")
    return caught
