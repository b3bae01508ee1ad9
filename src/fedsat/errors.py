"""The errors that speak to a user: what was wrong, where, and what to do.

The command line prints them as one line: exit code 2 for `UsageError` (the wish was wrong),
1 for every other `FedsatError` (the wish was fine and could not be carried out).
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class FedsatError(Exception):
    """Something failed that a user can understand and act on."""


class UsageError(FedsatError):
    """A name, value or aggregator that cannot be meant."""


class DataError(FedsatError):
    """A data file is missing, damaged or not what it should be."""


class TrainingError(FedsatError):
    """Training cannot go on, for example because a loss is not finite."""


def unknown(kind: str, name: str, known: Iterable[str]) -> UsageError:
    """The error for a name that does not exist, with the nearest one that does."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    listed = f" (known: {', '.join(names)})" if not near or len(names) <= 12 else ""
    return UsageError(f"unknown {kind} {name!r}{hint}{listed}")


def in_a_line(error: Exception) -> str:
    """An error as a user is told it; one that nobody foresaw with its kind."""
    return str(error) if isinstance(error, FedsatError) else f"unexpected {type(error).__name__}: {_first_line(error)}"


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
