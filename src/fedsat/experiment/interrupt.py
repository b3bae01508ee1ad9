"""Interruption: Ctrl-C and SIGTERM both end a run cleanly."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Terminated(SystemExit):
    """SIGTERM as an exception. The process ends with the exit code that shells use for it."""

    def __init__(self) -> None:
        super().__init__(128 + signal.SIGTERM)


STOPPED = (KeyboardInterrupt, SystemExit)
"""Exceptions that ask a run to stop; a host program with its own signal handlers may raise `SystemExit`."""


@contextmanager
def sigterm_raises() -> Iterator[None]:
    """Let SIGTERM raise `Terminated`, unless the program has its own handler or this is not the main thread."""

    def stop(*_: object) -> None:
        raise Terminated

    ours = threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if ours:
        signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        if ours:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
