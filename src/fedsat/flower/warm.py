"""Processes that start at once: forked from one that has imported torch and Flower already.

Flower starts a process for every message that a node gets. On a machine that plays all nodes by itself, importing
torch in each of them would be most of the work. There, Flower's commands for tasks are replaced by a stub that asks
`serve` to fork a process instead, which then runs the very command.

    python -m fedsat.flower.warm SOCKET
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path

COMMANDS = ("flwr-clientapp", "flwr-serverapp")
"""The commands of tasks, as Flower calls them."""

KEPT = ("FLWR_HOME", "PATH")
"""Variables that differ from one node to the next."""

STUB = """#!{python} -IS
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as asked:
    asked.connect({address!r})
    task = {{"command": sys.argv[1:], "name": {name!r}, "env": {{name: os.environ[name] for name in {kept!r}}}}}
    socket.send_fds(asked, [json.dumps(task).encode()], [1, 2])
    asked.recv(1)
"""


def write_stubs(folder: Path, address: Path) -> None:
    """Lay commands into `folder` that ask the server at `address`."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in COMMANDS:
        stub = folder / name
        stub.write_text(STUB.format(python=sys.executable, address=str(address), name=name, kept=KEPT))
        stub.chmod(0o700)


def serve(address: Path) -> None:
    """Fork a process for each task that is asked for, until the end of time."""
    import flwr.supernode.cli  # noqa: PLC0415 (the point of this process)

    import fedsat.flower  # noqa: F401, PLC0415

    del flwr
    commands = {name: _entry_point(name) for name in COMMANDS}
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks how a task ended
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(address))
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


def _become(task: dict[str, object], outputs: list[int], commands: dict[str, Callable[[], object]]) -> None:
    """Turn this process, just forked, into the task's; it does not return."""
    code = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for output, standard in zip(outputs, (1, 2), strict=True):
            os.dup2(output, standard)
            os.close(output)
        environment, command, name = task["env"], task["command"], str(task["name"])
        assert isinstance(environment, dict)
        assert isinstance(command, list)
        os.environ.update(environment)
        sys.argv = [name, *command]
        commands[name]()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _entry_point(name: str) -> Callable[[], object]:
    (found,) = importlib.metadata.entry_points(group="console_scripts", name=name)
    command: Callable[[], object] = found.load()
    return command


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
