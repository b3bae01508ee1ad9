"""Kill parts of a federation that runs as on several machines, and start them again as systemd does.

The server is `fedsat superlink`, the nodes are `fedsat supernode` with TLS and keys, and `flwr run` submits the run.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import time
import uuid
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedsat.experiment.config import Config
from fedsat.flower import guard
from fedsat.flower.agreement import Agreement
from fedsat.flower.credentials import make_credentials
from fedsat.flower.federation import NAME
from fedsat.flower.processes import QUIET, beside_python, free_port
from fedsat.flower.project import write_project
from tests.support.killed_federation import Progress, holds, uploads
from tests.support.processes import commands_with

MARK, PART = "FEDSAT_DEPLOYMENT", "FEDSAT_PART"
"""The environment variables that identify the processes of one deployment, and of one machine in it."""

LONGEST = 1800.0
"""Seconds in which a run must end once nothing is killed any more."""


@dataclass
class Deployment(Progress):
    """A run in a folder, whose server and nodes can be killed and are started again."""

    folder: Path
    config: Config
    terms: dict[str, Any]
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)
    _processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    _submitted: bool = False

    def __post_init__(self) -> None:
        self.home = self.folder.with_name(f"{self.folder.name}-machines")
        make_credentials(self.home, self.config.clients)
        (self.home / "agreement.toml").write_text(Agreement.covering(self.config).to_toml())
        (self.home / "config.toml").write_text(self.config.to_toml())
        write_project(
            self.home / "project",
            {"config": str(self.home / "config.toml"), "out": str(self.folder), **self.terms},
        )
        self.door, self.control = free_port(), free_port()

    def start(self) -> None:
        """Start the server, the nodes and the run."""
        self.tend()

    def tend(self) -> None:
        """Start again what has ended, and submit the run again if its server has ended."""
        for name in ("server", *(f"node-{client}" for client in range(self.config.clients))):
            if name not in self._processes or self._processes[name].poll() is not None:
                self._start(name)
        if not self._submitted and self._reachable() and not self._serving():
            self._submitted = self._flwr_run()

    def finish(self) -> str:
        """Wait for the end of the run, and end all processes."""
        deadline = time.monotonic() + LONGEST
        while not self.completed and time.monotonic() < deadline:
            self.tend()
            time.sleep(0.2)
        printed = self._log("server").read_text(errors="replace")
        self.end()
        assert self.completed, printed[-2000:]
        return printed

    def end(self) -> None:
        """Terminate all processes."""
        for process in self._processes.values():
            process.terminate()
        for process in self._processes.values():
            process.wait(60)

    @property
    def running(self) -> bool:
        """Whether the run is still in progress."""
        return not self.completed

    def kill(self, part: str, draw: random.Random) -> bool:
        """Kill a part with SIGKILL; return whether it was found. A node is killed with all of its processes."""
        found = commands_with(f"{MARK}={self.mark}")
        machines = [f"node-{client}" for client in range(self.config.clients)]
        if part == "upload":
            machines = [name for name in machines if uploads(self._log(name))]
        chosen: list[int] = []
        if part == "SuperLink":
            chosen = [pid for pid, command in found.items() if "flower-superlink" in command]
        elif part == "ServerApp":
            chosen = self._serving()
        elif part == "all":
            chosen = list(found)
        elif machines:
            chosen = list(commands_with(f"{MARK}={self.mark}", f"{PART}={draw.choice(machines)}"))
        for pid in chosen:
            guard.send(pid, signal.SIGKILL)
        if chosen and part in ("SuperLink", "ServerApp", "all"):
            self._submitted = False
        return bool(chosen)

    def _start(self, name: str) -> None:
        server = f"127.0.0.1:{self.door}"
        if name == "server":
            words = ["superlink", str(self.home / "server"), "--host", "127.0.0.1", "--port", f"{self.door}"]
            words += ["--control-port", f"{self.control}", "--state", str(self.home / "state")]
        else:
            own, client = self.home / name, name.removeprefix("node-")
            words = ["supernode", server, "--authority", str(own / "ca.crt"), "--key", str(own / "node")]
            words += ["--dataset", self.config.dataset_name, "--client", client, "--clients", f"{self.config.clients}"]
            words += ["--agreement", str(self.home / "agreement.toml")]
        with self._log(name).open("ab") as log:
            self._processes[name] = subprocess.Popen(
                [sys.executable, "-m", "fedsat", *words],
                cwd=self.home,
                env={**os.environ, MARK: self.mark, PART: name, "TMPDIR": str(self.home)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def _log(self, name: str) -> Path:
        return self.home / f"{name}.log"

    def _reachable(self) -> bool:
        """Whether the server accepts connections."""
        with suppress(OSError):
            for port in (self.door, self.control):
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return True
        return False

    def _serving(self) -> list[int]:
        """Return the processes that hold the run: its ServerApp."""
        return [pid for pid in commands_with(f"{MARK}={self.mark}") if holds(pid, self.folder / "checkpoints" / "lock")]

    def _flwr_run(self) -> bool:
        """Submit the run; return whether the SuperLink has accepted it."""
        done = subprocess.run(
            [str(beside_python("flwr")), "run", str(self.home / "project"), NAME],
            env={**os.environ, **QUIET, "FLWR_HOME": str(self.home / "state")},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
        )
        return done.returncode == 0
