"""Callbacks: your own code at the start of a run, after each round, and at the end."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from fedsat.errors import UsageError
from fedsat.metrics import RoundRecord
from fedsat.registry import import_object

if TYPE_CHECKING:
    from fedsat.experiment.run import Run


class Callback:
    """Override what you need. If a callback raises an error, the run fails, and the current round is not recorded."""

    def start(self, run: Run) -> None:
        """Called before the first round."""

    def round(self, run: Run, record: RoundRecord) -> None:
        """Called after each round, before its record is written: add to `record.metrics` or `record.extra`.

        `run.stop(reason)` ends the run after this round.
        """

    def end(self, run: Run) -> None:
        """Called at the end, also if the run failed or was interrupted; `run.status` says which."""


RoundFunction = Callable[["Run", RoundRecord], object]
Callbacks = Iterable[Callback | RoundFunction]


class _EachRound(Callback):
    def __init__(self, function: RoundFunction) -> None:
        self._function = function

    def round(self, run: Run, record: RoundRecord) -> None:
        self._function(run, record)


def as_callbacks(given: Callbacks) -> list[Callback]:
    """Return callbacks; a plain function is called after each round."""
    return [each if isinstance(each, Callback) else _EachRound(each) for each in given]


def find_callbacks(paths: Iterable[str]) -> list[Callback]:
    """Return the callbacks that `module:Name` paths point to: classes, instances or functions."""
    found: list[Any] = []
    for path in paths:
        given = import_object("callback", path)
        if inspect.isclass(given):
            given = given()
        if not (isinstance(given, Callback) or callable(given)):
            raise UsageError(f"{path} cannot be used as a callback: it is neither a Callback nor a function")
        found.append(given)
    return as_callbacks(found)
