"""Ends a federation's processes, even if the program that started them is killed.

A `Guard` runs this file as a separate process and holds the other end of its standard input. Each line written there
lists the process groups of the federation. When the program is gone, however it ended, the input ends, and the guard
terminates the processes and removes the folder. It imports no packages, so it is small.

    python guard.py MARK FOLDER
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

MARK = "FEDSAT_LOCAL_FEDERATION"
"""The environment variable that identifies the processes of a federation."""

PATIENCE = 10.0
"""Seconds that processes have to terminate before they are killed."""


class Guard:
    """The guard of this process: ends the processes that it watches when this process is gone."""

    def __init__(self, mark: str, folder: Path) -> None:
        command = [sys.executable, "-I", __file__, mark, str(folder)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)

    def watch(self, groups: Iterable[int]) -> None:
        """Watch these process groups from now on."""
        with suppress(OSError):  # the guard was killed
            os.write(self._process.stdin.fileno(), f"{' '.join(map(str, groups))}\n".encode())  # type: ignore[union-attr]

    def dismiss(self) -> None:
        """End the guard without ending anything else."""
        self._process.kill()
        self._process.communicate()


def end(groups: Sequence[int], mark: str, reap: Callable[[], object] = lambda: None) -> None:
    """Terminate process groups in this order, and kill what remains; `reap` is called while waiting.

    On Linux, that includes the processes with this mark that Flower starts in new sessions. Elsewhere, these notice
    themselves that their parent has ended.
    """
    for group in groups:
        send(-group, signal.SIGTERM)
    deadline = time.monotonic() + PATIENCE
    while (left := alive(groups, mark)) and time.monotonic() < deadline:
        reap()
        time.sleep(0.05)
    for pid in left:
        send(pid, signal.SIGKILL)


def alive(groups: Sequence[int], mark: str) -> list[int]:
    """Return what is left of a federation: processes, or negative numbers of groups if processes cannot be found."""
    if not Path("/proc/self/environ").exists():
        return [-group for group in groups if send(-group, 0)]
    wanted, found = f"{MARK}={mark}".encode(), []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if wanted in (folder / "environ").read_bytes().split(b"\0") and not _is_zombie(folder):
                found.append(int(folder.name))
    return found


def send(pid: int, number: int) -> bool:
    """Send a signal to a process, or to a group if negative; return whether it exists."""
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _is_zombie(folder: Path) -> bool:
    return (folder / "stat").read_text().rpartition(") ")[2].startswith("Z")


def main(mark: str, folder: str) -> None:
    """Wait until the input ends, then end the processes of its last line."""
    groups: list[int] = []
    for line in sys.stdin:
        groups = [int(group) for group in line.split()]
    end(groups, mark)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
