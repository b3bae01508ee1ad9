"""Kill parts of `fedsat federate` with SIGKILL, let the run complete, and compare it with an undisturbed one."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedsat.flower import guard
from tests.support.processes import commands_with

MARK = "FEDSAT_KILLED"
"""The environment variable that identifies the processes of one federation."""

PARTS = ("SuperLink", "ServerApp", "node", "upload", "all")
"""What can be killed; an upload is a node while it sends a reply."""

OF_THE_WAY = ("seconds", "bytes_down", "bytes_up", "bytes_workers", "bytes_evaluate", "left_out", "repeated")
"""Entries of a record that describe how a round went, not its results."""


class Progress:
    """How far a run in a folder is."""

    folder: Path

    @property
    def rounds(self) -> int:
        """The number of recorded rounds."""
        path = self.folder / "metrics.jsonl"
        return path.read_bytes().count(b"\n") if path.exists() else 0

    @property
    def completed(self) -> bool:
        """Whether the run has come to its end."""
        path = self.folder / "summary.json"
        return path.exists() and json.loads(path.read_text())["status"] == "completed"


@dataclass
class Federation(Progress):
    """A run of `fedsat federate` in a folder, as a process that can be killed and continued."""

    folder: Path
    arguments: list[str]
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)
    process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start the run, or resume it."""
        begun = (self.folder / "config.toml").exists()
        call = ["resume", str(self.folder)] if begun else ["federate", *self.arguments, "--out", str(self.folder)]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "fedsat", *call],
            env={**os.environ, MARK: self.mark},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def tend(self) -> None:
        """Do nothing: `fedsat federate` starts again what has ended, until it is killed itself."""

    def finish(self) -> str:
        """Wait for the end of the run, which must succeed, and return what it printed."""
        assert self.process is not None
        printed, _ = self.process.communicate()
        assert self.process.returncode == 0, printed
        return printed

    def end(self) -> None:
        """Terminate the run if it is still in progress."""
        if self.process is not None and self.running:
            self.process.terminate()
            self.process.communicate()

    def kill(self, part: str, draw: random.Random) -> bool:
        """Kill a part with SIGKILL; return whether it was found."""
        assert self.process is not None
        found = self._processes()
        chosen = {
            "SuperLink": [pid for pid, command in found.items() if "flower-superlink" in command],
            "ServerApp": [pid for pid in found if holds(pid, self.folder / "checkpoints" / "lock")],
            "node": [pid for pid, command in found.items() if "fedsat.flower.supernode" in command],
            "upload": [pid for pid, command in found.items() if self._uploads(command)],
            "all": list(found),
        }[part]
        if part in ("node", "upload") and chosen:
            chosen = [draw.choice(chosen)]
        for pid in chosen:
            guard.send(pid, signal.SIGKILL)
        if part == "all":
            self.process.communicate()
            while left := self._processes():  # started while the others were killed
                for pid in left:
                    guard.send(pid, signal.SIGKILL)
                time.sleep(0.1)
        return bool(chosen)

    @property
    def running(self) -> bool:
        """Whether the run is still in progress."""
        return self.process is not None and self.process.poll() is None

    def _uploads(self, command: str) -> bool:
        """Whether a process is a node that is sending a reply."""
        client = re.search(r"fedsat\.flower\.supernode.* partition-id=(\d+)", command)
        return client is not None and uploads(self.folder / "flower-logs" / f"node-{client[1]}.log")

    def _processes(self) -> dict[int, str]:
        """Return the command lines of all processes of this federation."""
        return commands_with(f"{MARK}={self.mark}")


def uploads(log: Path) -> bool:
    """Whether a node with this log is sending a reply."""
    text = log.read_text(errors="replace")
    return text.rfind("Sending: ") > max(text.rfind(done) for done in ("Sent successfully", "Starting Flower"))


def holds(pid: int, file: Path) -> bool:
    """Whether a process has opened a file."""
    for handle in Path(f"/proc/{pid}/fd").glob("*"):
        with suppress(OSError):
            if handle.readlink() == file.resolve():
                return True
    return False


def results(folder: Path) -> dict[str, Any]:
    """Return all results of a run."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        for name in OF_THE_WAY:
            line.pop(name, None)
    return {"metrics": lines, "model": (folder / "model.safetensors").read_bytes()}


def wait_for(condition: Callable[[], bool], seconds: float) -> bool:
    """Wait until a condition holds, and return whether it does."""
    deadline = time.monotonic() + seconds
    while not (done := condition()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return done
