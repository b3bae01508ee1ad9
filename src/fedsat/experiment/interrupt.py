"""Interruption: Ctrl-C, SIGTERM, and SIGHUP (a terminal that closes) all end a run cleanly."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

ENDING = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))
"""Signals that ask a process to end, besides that of Ctrl-C."""


class Terminated(SystemExit):
    """SIGTERM or SIGHUP as an exception. The process ends with the exit code that shells use for the signal."""

    def __init__(self, number: int = signal.SIGTERM) -> None:
        super().__init__(128 + number)


STOPPED = (KeyboardInterrupt, SystemExit)
"""Exceptions that ask a run to stop; a host program with its own signal handlers may raise `SystemExit`."""


@contextmanager
def signals_raise() -> Iterator[None]:
    """Let SIGTERM and SIGHUP raise `Terminated`, except where the program has its own handler (or ignores SIGHUP, as
    under nohup), and unless this is not the main thread.
    """

    def stop(number: int, _: object) -> None:
        raise Terminated(number)

    main = threading.current_thread() is threading.main_thread()
    ours = [number for number in ENDING if main and signal.getsignal(number) is signal.SIG_DFL]
    for number in ours:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)
