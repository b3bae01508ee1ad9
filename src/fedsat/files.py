"""Files that users name."""

from __future__ import annotations

import errno
import stat
from pathlib import Path


def regular(path: Path) -> Path:
    """Return the path of a file; raise an `OSError` if it is anything else, such as a pipe, which one may wait for."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError(errno.EINVAL, "not a regular file")
    return path
