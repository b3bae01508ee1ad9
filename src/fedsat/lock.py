"""Locks between processes: held through an open file, and gone with the process that held it, however it ended."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

if sys.platform == "win32":
    import msvcrt

    def take(handle: int, *, wait: bool) -> bool:
        """Lock an open file for this process alone; False if another has it and we are not to wait."""
        while True:  # LK_LOCK itself gives up after ten seconds
            try:
                msvcrt.locking(handle, msvcrt.LK_LOCK if wait else msvcrt.LK_NBLCK, 1)
            except OSError:
                if not wait:
                    return False
            else:
                return True

else:
    import fcntl

    def take(handle: int, *, wait: bool) -> bool:
        """Lock an open file for this process alone; False if another has it and we are not to wait."""
        try:
            fcntl.flock(handle, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


@contextmanager
def holding(file: Path, waiting: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Hold the lock that `file` stands for; `waiting` is called first if another process has it."""
    with file.open("a+b") as opened:
        if not take(opened.fileno(), wait=False):
            waiting()
            take(opened.fileno(), wait=True)
        yield
