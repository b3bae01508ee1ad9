"""Limits on the time and the memory that a block of code takes, where a process can set them for itself.

Both hold in the main thread of a process, which is where Flower's nodes run the ClientApp. The limit on time needs
POSIX, and the limit on memory Linux. Memory of GPUs is not limited.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NO_MEMORY = ("can't allocate memory", "Cannot allocate memory", "not enough memory", "std::bad_alloc")
"""What errors of torch and of the operating system say if there is no memory."""


@contextmanager
def time_limit(seconds: float, error: Exception) -> Iterator[None]:
    """Raise an error in the block after some seconds. A limit around this one holds as well."""
    if not _is_main() or not hasattr(signal, "setitimer"):
        yield
        return

    def stop(*_: object) -> None:
        raise error

    handler, began = signal.signal(signal.SIGALRM, stop), time.monotonic()
    outer, _ = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, max(outer - (time.monotonic() - began), 1e-3) if outer else 0)
        signal.signal(signal.SIGALRM, handler)


@contextmanager
def memory_limit(nbytes: int, error: Exception) -> Iterator[None]:
    """Raise an error in the block when the process needs this many bytes more than before."""
    if not _is_main() or sys.platform != "linux":
        yield
        return
    import resource  # noqa: PLC0415 (only on POSIX)

    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    most = min((one for one in (soft, hard) if one != resource.RLIM_INFINITY), default=sys.maxsize)
    resource.setrlimit(resource.RLIMIT_DATA, (min(_data() + nbytes, most), hard))
    try:
        yield
    except (MemoryError, RuntimeError, OSError) as failed:
        if isinstance(failed, MemoryError) or any(text in str(failed) for text in NO_MEMORY):
            raise error from failed
        raise
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def _is_main() -> bool:
    return threading.current_thread() is threading.main_thread()


def _data() -> int:
    """Return the bytes of this process that count against the limit."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmData:"))
