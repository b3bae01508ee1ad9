"""Fast process starts: fork from a process that has already imported torch and Flower.

Flower starts a process for every message that a node receives. If all nodes run on one machine, most of the time would
be spent importing torch. `Processes` therefore replaces Flower's commands for tasks with stubs, which ask
`serve` to fork a process that runs the same command. A node's tasks use the installed fedsat; code that comes with the
server's project is ignored.

    python -m fedsat.flower.warm SOCKET
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import shlex
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

CLIENT_APP = "flwr-clientapp"
COMMANDS = (CLIENT_APP, "flwr-serverapp")
"""Flower's commands for tasks."""

ASK = """import json, os, socket, sys
folder, name = os.path.split(sys.argv[1])
os.chdir(folder)
with socket.socket(socket.AF_UNIX) as asked:
    asked.connect(name)
    task = {"command": sys.argv[2:], "env": {name: os.environ[name] for name in ("FLWR_HOME", "PATH")}}
    socket.send_fds(asked, [json.dumps(task).encode()], [1, 2])
    asked.recv(1)
"""
"""The stub's script: sends the command, the environment variables that differ between nodes, and the output files.
It imports no packages, so it starts quickly. It names the socket from within its folder, as `_bind` does."""


def write_stubs(folder: Path, address: Path) -> None:
    """Write stubs to `folder` that send their commands to the server at `address`."""
    folder.mkdir(parents=True, exist_ok=True)
    script = folder / "ask.py"
    script.write_text(ASK)
    for name in COMMANDS:
        stub = folder / name
        command = shlex.join([sys.executable, "-IS", str(script), str(address), name])
        stub.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        stub.chmod(0o700)


def serve(address: Path) -> None:
    """Fork a process for each requested task, until this process is terminated."""
    for module in ("fedsat.flower.client", "fedsat.flower.server"):
        importlib.import_module(module)  # the expensive imports, once for all tasks
    importlib.import_module("fedsat.flower.pulls").ask_again_soon()
    commands = {name: _entry_point(name) for name in COMMANDS}
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the exit code of a task is not needed
    with socket.socket(socket.AF_UNIX) as listening:
        _bind(listening, address)
        listening.listen()
        while True:
            asked, _ = listening.accept()
            with asked:
                task, outputs, _, _ = socket.recv_fds(asked, 65536, 2)
                if os.fork() == 0:
                    listening.close()
                    asked.close()
                    _become(json.loads(task), outputs, commands)
                for output in outputs:
                    os.close(output)


def _bind(listening: socket.socket, address: Path) -> None:
    """Bind a socket by its name in its folder, because its path may be longer than the 108 bytes of an address."""
    here = Path.cwd()
    os.chdir(address.parent)
    listening.bind(address.name)
    os.chdir(here)


def _become(task: dict[str, Any], outputs: list[int], commands: dict[str, Callable[[], object]]) -> None:
    """Run a task in this forked process, and exit."""
    code = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for output, standard in zip(outputs, (1, 2), strict=True):
            os.dup2(output, standard)
            os.close(output)
        os.environ.update(task["env"])
        sys.argv = task["command"]
        if sys.argv[0] == CLIENT_APP:
            ignore_code_in(Path(task["env"]["FLWR_HOME"]))
        commands[sys.argv[0]]()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def ignore_code_in(folder: Path) -> None:
    """Hide this folder, where Flower unpacks the projects that the server sends, from imports.

    Otherwise the server could send a project whose code does anything on the node, whatever the node's agreement says.
    """

    class Empty:
        def find_spec(self, *_: object) -> None:
            """Find nothing."""

    def hook(entry: str) -> Empty:
        if not Path(entry).resolve().is_relative_to(folder.resolve()):
            raise ImportError  # other hooks are tried
        return Empty()

    sys.path_hooks.insert(0, hook)
    sys.path_importer_cache.clear()


def _entry_point(name: str) -> Callable[[], object]:
    (found,) = importlib.metadata.entry_points(group="console_scripts", name=name)
    command: Callable[[], object] = found.load()
    return command


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
