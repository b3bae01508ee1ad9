"""A local federation: a SuperLink and SuperNodes as processes on this machine.

Everything that Flower writes is in one folder. No process is left behind when the federation stops, or when the program
that started it is killed (`guard`).
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from fedsat.errors import FedsatError, UsageError
from fedsat.flower import guard
from fedsat.flower.guard import MARK, Guard
from fedsat.flower.project import toml_lines, write_project
from fedsat.flower.warm import write_stubs

NAME = "fedsat"
"""The name of the SuperLink in Flower's configuration."""

WARM = sys.platform == "linux"
"""Whether tasks are forked from a process that has already imported torch."""

NODE_BYTES = 200_000_000
"""Memory that the processes of a SuperNode take before they load data or a model."""

KNOWN = b"already in use"
"""In the answer of `flwr supernode register` if the SuperLink's database has the key from before."""


@dataclass(frozen=True)
class Tls:
    """Files for encrypted connections: the certificate authority, and the SuperLink's certificate and key."""

    authority: Path
    certificate: Path
    key: Path

    @staticmethod
    def of(folder: Path) -> Tls:
        """Return the files that `credentials.py` writes into a folder."""
        tls = Tls(folder / "ca.crt", folder / "server.crt", folder / "server.key")
        for file in (tls.authority, tls.certificate, tls.key):
            if not file.is_file():
                raise UsageError(f"{file} is missing; it comes from the authority that signs the server's certificate")
        return tls


@dataclass
class LocalFederation:
    """A SuperLink and SuperNodes as processes. Use it as a context manager, which stops them all at the end."""

    folder: Path
    """For the files of Flower; removed if this program is killed."""
    tls: Tls | None = None
    keys: Path | None = None
    """A folder with the public keys (`*.pub`) of the nodes that may join, through a gate; None: any node of this
    machine may. Needs `tls`."""
    threads: int = 1
    """Threads of each node."""
    logs: Path | None = None
    """The folder for what the processes print; by default, `logs` in `folder`."""
    port: int = 0
    """The SuperLink's port on this machine; 0: a free one."""
    door: tuple[str, int] = ("127.0.0.1", 0)
    """The gate's address and port; 0: a free one."""
    database: Path | None = None
    """The file in which the SuperLink keeps its state; None: in memory."""
    echo: bool = False
    """Whether the processes write to this one's output, instead of to files in `folder`."""
    _registered: set[bytes] = field(default_factory=set)
    _guard: Guard | None = None
    _processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    _mark: str = field(default_factory=lambda: uuid.uuid4().hex)

    def __enter__(self) -> LocalFederation:
        self.port = self.port or free_port()
        secured = ["--insecure"]
        if self.tls is not None:
            files = {"ca-certfile": self.tls.authority, "certfile": self.tls.certificate, "keyfile": self.tls.key}
            secured = [part for name, path in files.items() for part in (f"--ssl-{name}", str(path))]
        if WARM:
            write_stubs(self.folder / "bin", self._warm)
        self.write_connection(self._home("link"))
        auth = ["--enable-supernode-auth"] if self.keys is not None else []
        kept = ["--database", str(self.database)] if self.database is not None else []
        try:
            self._guard = Guard(self._mark, self.folder)
            if WARM:
                self._start("warm", ["python", "-m", "fedsat.flower.warm", str(self._warm)])
            options = [*secured, *auth, *kept, "--disable-runtime-dependency-installation", "--port", f"{self.port}"]
            self._start("link", ["flower-superlink", *options])
            self._open_gate()
            self._wait_until_ready()
            self.register()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def write_connection(self, home: Path) -> None:
        """Write how to reach the SuperLink to a folder, which `flwr` uses if it is FLWR_HOME."""
        connection: dict[str, Any] = {"address": f"127.0.0.1:{self.port}"}
        if self.tls is None:
            connection["insecure"] = True
        else:
            connection["root-certificates"] = str(self.tls.authority.resolve())
        (home / "config.toml").write_text("\n".join([f"[superlink.{NAME}]", *toml_lines(connection), ""]))

    def start_node(
        self,
        name: str,
        config: Mapping[str, Any],
        *options: str,
        key: Path | None = None,
        authority: Path | None = None,
    ) -> subprocess.Popen[bytes]:
        """Start a SuperNode with this node configuration and further options of `flower-supernode`.

        `key` is its private key for authentication; `authority` overrides the federation's certificate authority.
        """
        port = self.port if self.keys is None else self.door[1]
        command = ["python", "-m", "fedsat.flower.supernode", "--superlink", f"127.0.0.1:{port}"]
        command += ["--port", f"{free_port()}"]
        if self.tls is None:
            command.append("--insecure")
        else:
            command += ["--root-certificates", str(authority or self.tls.authority)]
        if key is not None:
            command += ["--auth-supernode-private-key", str(key)]
        return self._start(name, [*command, *options, "--node-config", " ".join(toml_lines(config, equals="="))])

    def register(self) -> list[Path]:
        """Register the keys that are new in the folder, and return their files."""
        found = [] if self.keys is None else sorted(self.keys.glob("*.pub"))
        new = [file for file in found if file.read_bytes() not in self._registered]
        for file in new:
            done = self._flwr("supernode", "register", str(file), NAME)
            if done.returncode and KNOWN not in done.stdout:
                raise FedsatError(f"cannot register the key {file}: {done.stdout.decode().strip()}")
            self._registered.add(file.read_bytes())
        return new

    def ended(self) -> list[str]:
        """Return the names of processes that have ended."""
        return [name for name, process in self._processes.items() if process.poll() is not None]

    def submit(self, run_config: Mapping[str, Any]) -> subprocess.Popen[bytes]:
        """Submit a run once the previous one has ended.

        The returned process ends with the run, and its log is `run.log`.
        """
        if "run" in self._processes:
            self._processes.pop("run").wait()
        project = self.folder / "project"
        write_project(project, run_config)
        return self._start("run", ["flwr", "run", str(project), NAME, "--stream"], home="link")

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

    def _start(self, name: str, command: list[str], home: str | None = None) -> subprocess.Popen[bytes]:
        with open(os.devnull if self.echo else self._log(name), "ab") as output:
            process = subprocess.Popen(
                [str(_beside_python(command[0])), *command[1:]],
                stdin=subprocess.DEVNULL,
                stdout=None if self.echo else output,
                stderr=None if self.echo else subprocess.STDOUT,
                env=self._environment(home or name),
                start_new_session=True,
            )
        self._processes[name] = process
        if self._guard is not None:
            self._guard.watch(process.pid for process in self._processes.values())
        return process

    def _flwr(self, *arguments: str, home: Path | None = None) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [str(_beside_python("flwr")), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=self._environment("link") | ({"FLWR_HOME": str(home)} if home else {}),
            check=False,
        )

    def _environment(self, home: str) -> dict[str, str]:
        """Return the environment of a process: a folder for Flower's files, no telemetry, few threads, fast polling."""
        paths = [str(self.folder / "bin"), str(_beside_python("")), os.environ.get("PATH", "")]
        usual = {
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
        }
        return {
            **usual,
            **os.environ,
            "PATH": os.pathsep.join(paths),
            "FLWR_HOME": str(self._home(home)),
            "OMP_NUM_THREADS": str(self.threads),
            MARK: self._mark,
        }

    def _home(self, name: str) -> Path:
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

    def _open_gate(self) -> None:
        """Start the gate, if there is a list of nodes."""
        if self.keys is None:
            return
        if self.tls is None:
            raise FedsatError("nodes with keys need encrypted connections (tls)")
        host, port = self.door[0], self.door[1] or free_port()
        self.door = (host, port)
        files = [self.keys, self.tls.authority, self.tls.certificate, self.tls.key]
        self._start(
            "gate",
            ["python", "-m", "fedsat.flower.gate", f"127.0.0.1:{self.port}", host, f"{port}", *map(str, files)],
        )

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + 120
        while not self._ready() and time.monotonic() < deadline:
            if ended := self.ended():
                last = self.log(ended[0]).strip().splitlines()[-5:]
                raise FedsatError("Flower did not start: " + " ".join(last))
            time.sleep(0.05)

    def _ready(self) -> bool:
        """Return whether the SuperLink accepts connections and tasks can be forked."""
        ports = [self.port] if self.keys is None else [self.port, self.door[1]]
        with suppress(OSError):
            for port in ports:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return not WARM or self._warm.exists()
        return False


def free_port() -> int:
    """Return a port that is currently unused."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _beside_python(name: str) -> Path:
    """Return the path of a command in the environment of this Python."""
    return Path(sys.executable).parent / name
