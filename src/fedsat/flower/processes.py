"""Processes of Flower on this machine.

Everything that Flower writes is in one folder. No process is left behind when they are stopped, or when the program
that started them is killed (`guard`).
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from fedsat.errors import FedsatError
from fedsat.flower import guard
from fedsat.flower.guard import MARK, Guard
from fedsat.flower.warm import write_stubs

WARM = sys.platform == "linux"
"""Whether tasks are forked from a process that has already imported torch."""

QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
"""What Flower's processes would otherwise tell its makers: that they were started, and their version."""

NODE_BYTES = 200_000_000
"""Memory that the processes of a SuperNode take before they load data or a model."""


@dataclass
class Processes:
    """Processes of Flower, and one that forks their tasks. Use it as a context manager, which stops them at the end."""

    folder: Path
    """The folder for Flower's files; removed if this program is killed."""
    threads: int = 1
    """Number of threads of each process."""
    logs: Path | None = None
    """The folder for what the processes print; by default, `logs` in `folder`."""
    echo: bool = False
    """Whether the processes write to this one's output instead."""
    _guard: Guard | None = None
    _processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    _mark: str = field(default_factory=lambda: uuid.uuid4().hex)

    def __enter__(self) -> Self:
        if WARM:
            write_stubs(self.folder / "bin", self._warm)
        try:
            self._guard = Guard(self._mark, self.folder)
            if WARM:
                self.start("warm", ["python", "-m", "fedsat.flower.warm", str(self._warm)])
            self._begin()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _begin(self) -> None:
        """Start the processes that run from the beginning."""
        self.wait_for()

    def log(self, name: str) -> str:
        """Return what a process has printed so far."""
        path = self._log(name)
        return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""

    def kill(self, name: str) -> None:
        """Kill a process and its children at once, as a power failure would."""
        process = self._processes.pop(name)
        guard.send(-process.pid, signal.SIGKILL)
        process.wait()

    def stop(self) -> None:
        """Terminate all processes, the run first so that it can write its files, and kill those that remain."""
        processes = [self._processes[name] for name in sorted(self._processes, key=lambda name: name != "run")]

        def reap() -> None:
            for process in processes:
                process.poll()

        guard.end([process.pid for process in processes], self._mark, reap)
        if self._guard is not None:
            self._guard.dismiss()
        for process in processes:
            process.wait()
        self._processes.clear()

    def start(self, name: str, command: list[str], home: str | None = None) -> subprocess.Popen[bytes]:
        """Start a command of this Python's environment; `home` is its folder for Flower's files."""
        with open(os.devnull if self.echo else self._log(name), "ab") as output:
            process = subprocess.Popen(
                [str(beside_python(command[0])), *command[1:]],
                stdin=subprocess.DEVNULL,
                stdout=None if self.echo else output,
                stderr=None if self.echo else subprocess.STDOUT,
                env=self.environment(home or name),
                start_new_session=True,
            )
        self._processes[name] = process
        if self._guard is not None:
            self._guard.watch(process.pid for process in self._processes.values())
        return process

    def ended(self) -> list[str]:
        """Return the names of processes that have ended."""
        return [name for name, process in self._processes.items() if process.poll() is not None]

    def wait_for(self, *ports: int) -> None:
        """Wait until tasks can be forked, and these ports of this machine accept connections."""
        deadline = time.monotonic() + 120
        while not self._ready(ports) and time.monotonic() < deadline:
            if ended := self.ended():
                last = self.log(ended[0]).strip().splitlines()[-5:]
                raise FedsatError("Flower did not start: " + " ".join(last))
            time.sleep(0.05)

    def _ready(self, ports: tuple[int, ...]) -> bool:
        with suppress(OSError):
            for port in ports:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return not WARM or self._warm.exists()
        return False

    def environment(self, home: str) -> dict[str, str]:
        """Return the environment of a process: a folder for Flower's files, no telemetry, few threads, fast polling."""
        paths = [str(self.folder / "bin"), str(beside_python("")), os.environ.get("PATH", "")]
        return {
            **os.environ,
            **QUIET,
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",
            "PATH": os.pathsep.join(paths),
            "FLWR_HOME": str(self.home(home)),
            "OMP_NUM_THREADS": str(self.threads),
            MARK: self._mark,
        }

    def home(self, name: str) -> Path:
        """Return a folder for Flower's files."""
        home = self.folder / "homes" / name
        home.mkdir(parents=True, exist_ok=True)
        return home

    def _log(self, name: str) -> Path:
        logs = self.logs or self.folder / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        return logs / f"{name}.log"

    @property
    def _warm(self) -> Path:
        """The socket of the process that forks tasks."""
        return self.folder / "warm"


def free_port() -> int:
    """Return a port that is currently unused."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def beside_python(name: str) -> Path:
    """Return the path of a command in the environment of this Python."""
    return Path(sys.executable).parent / name
