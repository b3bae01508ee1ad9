"""Errors for users: what is wrong, where, and what to do.

The command line prints them as one line. The exit code is 2 for a `UsageError` (wrong use) and 1 for every other
`FedsatError` (a failure).
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class FedsatError(Exception):
    """Base class of errors that a user can understand and act on."""


class UsageError(FedsatError):
    """A name or value is invalid, or settings contradict each other."""


class DataError(FedsatError):
    """A file or dataset is missing, damaged or invalid."""


class TrainingError(FedsatError):
    """Training cannot continue, for example because a loss is not finite."""


class SkippedRoundError(TrainingError):
    """A round has no result, but the training can continue with the next one."""


def unknown(kind: str, name: str, known: Iterable[str]) -> UsageError:
    """Return the error for a name that does not exist; it suggests the nearest one that does."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    listed = f" (known: {', '.join(names)})" if not near or len(names) <= 12 else ""
    return UsageError(f"unknown {kind} {name!r}{hint}{listed}")


def in_a_line(error: Exception) -> str:
    """Return an error's message for users; that of an unexpected error includes its type."""
    return str(error) if isinstance(error, FedsatError) else f"unexpected {type(error).__name__}: {_first_line(error)}"


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
