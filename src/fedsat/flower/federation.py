"""A local federation: a SuperLink and SuperNodes as processes on this machine, and a gate for nodes on others."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from fedsat.errors import FedsatError, UsageError
from fedsat.flower.processes import Processes, beside_python, free_port
from fedsat.flower.project import toml_lines, write_project
from fedsat.flower.supernode import command

NAME = "fedsat"
"""The name of the SuperLink in Flower's configuration."""

KNOWN = b"already in use"
"""In the output of `flwr supernode register` if the SuperLink's database already has the key."""


@dataclass(frozen=True)
class Tls:
    """Files for encrypted connections: the certificate authority, and the SuperLink's certificate and key."""

    authority: Path
    certificate: Path
    key: Path

    @staticmethod
    def of(folder: Path) -> Tls:
        """Return the files that `make_credentials` writes into the server's folder."""
        tls = Tls(folder / "ca.crt", folder / "server.crt", folder / "server.key")
        for file in (tls.authority, tls.certificate, tls.key):
            if not file.is_file():
                raise UsageError(f"{file} is missing; it comes from the authority that signs the server's certificate")
        return tls


@dataclass
class LocalFederation(Processes):
    """A SuperLink and SuperNodes as processes."""

    SERVER: ClassVar = ("link", "gate", "warm")
    """The processes without which no run can continue."""

    tls: Tls | None = None
    keys: Path | None = None
    """A folder with the public keys (`*.pub`) of the nodes that may join, through a gate; None: any node of this
    machine may. Needs `tls`."""
    port: int = 0
    """The SuperLink's port on this machine; 0: a free one."""
    door: tuple[str, int] = ("127.0.0.1", 0)
    """The gate's address and port; 0: a free one."""
    database: Path | None = None
    """The file in which the SuperLink keeps its state; None: in memory."""
    _registered: set[bytes] = field(default_factory=set)
    _nodes: dict[str, Callable[[], subprocess.Popen[bytes]]] = field(default_factory=dict)
    """How to start each node again."""

    def _begin(self) -> None:
        """Start the SuperLink and the gate, and register the nodes."""
        self.port = self.port or free_port()
        options = ["--disable-runtime-dependency-installation", "--port", f"{self.port}"]
        if self.tls is None:
            options.append("--insecure")
        else:
            files = {"ca-certfile": self.tls.authority, "certfile": self.tls.certificate, "keyfile": self.tls.key}
            options += [part for name, path in files.items() for part in (f"--ssl-{name}", str(path))]
        if self.keys is not None:
            options.append("--enable-supernode-auth")
        if self.database is not None:
            options += ["--database", str(self.database)]
        self.write_connection(self.home("link"))
        self.start("link", ["flower-superlink", *options])
        if self.keys is None:
            self.wait_for(self.port)
        else:
            self._open_gate(self.keys)
            self.wait_for(self.port, self.door[1])
            self.register()

    def write_connection(self, home: Path) -> None:
        """Write the SuperLink's address to a folder; `flwr` uses the folder that FLWR_HOME names."""
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
        if authority is None and self.tls is not None:
            authority = self.tls.authority

        def launch() -> subprocess.Popen[bytes]:
            return self.start(name, [*command(f"127.0.0.1:{port}", config, key, authority), *options])

        self._nodes[name] = launch
        return launch()

    def revive(self) -> list[str]:
        """Start nodes again that have ended, and return their names."""
        ended = [name for name in self.ended() if name in self._nodes]
        for name in ended:
            self._nodes[name]()
        return ended

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

    def submit(self, run_config: Mapping[str, Any]) -> subprocess.Popen[bytes]:
        """Submit a run once the previous one has ended.

        The returned process ends with the run, and its log is `run.log`.
        """
        if "run" in self._processes:
            self._processes.pop("run").wait()
        project = self.folder / "project"
        write_project(project, run_config)
        return self.start("run", ["flwr", "run", str(project), NAME, "--stream"], home="link")

    def _flwr(self, *arguments: str, home: Path | None = None) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [str(beside_python("flwr")), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=self.environment("link") | ({"FLWR_HOME": str(home)} if home else {}),
            check=False,
        )

    def _open_gate(self, keys: Path) -> None:
        """Start the gate for the nodes with these keys."""
        if self.tls is None:
            raise FedsatError("nodes with keys need encrypted connections (tls)")
        host, port = self.door[0], self.door[1] or free_port()
        self.door = (host, port)
        files = [keys, self.tls.authority, self.tls.certificate, self.tls.key]
        self.start(
            "gate",
            ["python", "-m", "fedsat.flower.gate", f"127.0.0.1:{self.port}", host, f"{port}", *map(str, files)],
        )
