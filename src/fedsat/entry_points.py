"""Parts that other installed packages offer, as entry points in the groups `fedsat.methods`, `fedsat.models` and so on.

Looking for names imports nothing; a package is imported when one of its parts is used.
"""

from __future__ import annotations

import functools
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from fedsat.errors import UsageError


@functools.cache
def offers(group: str) -> dict[str, EntryPoint]:
    """Return the entry points in the group `fedsat.GROUP`, by name; if names are equal, the first on Python's path."""
    found: dict[str, EntryPoint] = {}
    for point in entry_points(group=f"fedsat.{group}"):
        found.setdefault(point.name, point)
    return found


def package_of(point: EntryPoint) -> str:
    """Return the name of the package that an entry point belongs to."""
    return point.dist.name if point.dist is not None else point.module.partition(".")[0]


def load_offer(kind: str, point: EntryPoint) -> Any:
    """Import the object of an entry point; an error names the package."""
    try:
        return point.load()
    except (Exception, SystemExit) as error:  # whatever the package's code raises
        reason = f"{type(error).__name__}: {error}".partition("\n")[0]
        raise UsageError(
            f"cannot load the {kind} {point.name!r} ({point.value}) of the package {package_of(point)}: {reason}"
        ) from error
