"""The running processes of this machine, found by their environment (Linux)."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path


def environments_with(*wanted: str) -> dict[int, set[bytes]]:
    """Return the environments of the running processes that have these settings in theirs."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            running = " Z " not in (folder / "stat").read_text()
            settings = set((folder / "environ").read_bytes().split(b"\0"))
            if running and settings >= {setting.encode() for setting in wanted}:
                found[int(folder.name)] = settings
    return found


def commands_with(*wanted: str) -> dict[int, str]:
    """Return the command lines of the running processes that have these settings in their environments."""
    found = {}
    for pid in environments_with(*wanted):
        with suppress(OSError):
            found[pid] = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    return found
