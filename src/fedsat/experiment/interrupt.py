"""Being asked to stop: Ctrl-C and SIGTERM both end a run in good order."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Terminated(SystemExit):
    """SIGTERM, as an exception: the process ends with the code that shells have for it."""

    def __init__(self) -> None:
        super().__init__(128 + signal.SIGTERM)


STOPPED = (KeyboardInterrupt, SystemExit)
"""What a wish to stop looks like: ours, or that of a host program that has its own way with signals."""


@contextmanager
def sigterm_raises() -> Iterator[None]:
    """Let SIGTERM raise `Terminated` here, unless the program has its own way with it or we are in another thread."""

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
