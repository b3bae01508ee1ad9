"""Runs that train together: their rounds take turns, and one stack trains the clients of all of them.

A run goes through the same rounds as alone, and has its own folder, records and checkpoints. Only its local training is
done ahead, at once with that of the others (`fedsat.engine.stack`). A run that ends or fails leaves the stack.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedsat.engine import StackedEngine
from fedsat.engine.stack import Stack
from fedsat.errors import FedsatError
from fedsat.experiment.callbacks import RoundFunction
from fedsat.experiment.config import DATA, Config
from fedsat.experiment.interrupt import signals_raise
from fedsat.experiment.jobs import Job
from fedsat.experiment.run import Run, round_by_round

logger = logging.getLogger(__name__)

SHAPES = (*DATA, "model", "batch_size", "augment", "algorithm", "optimizer", "engine", "compile", "device", "precision")
"""The settings that decide which tensors a client has. Of a method and an optimizer, numbers only decide it by being
zero or not."""

ALONE = ("minutes", "track")
"""Settings with which a run trains alone: a budget of time is for one run, and so are some trackers in a process."""


def family(config: Config) -> str | None:
    """Return a text that is equal for runs that may train together; None for a run that trains alone."""
    if config.batch_size == "all" or any(getattr(config, name) for name in ALONE):
        return None
    table = config.table()
    table |= {name: _without_numbers(table[name]) for name in ("algorithm", "optimizer")}
    return json.dumps({name: table.get(name) for name in SHAPES}, sort_keys=True)


def _without_numbers(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_numbers(each) for name, each in value.items()}
    return value != 0 if type(value) in (int, float) else value


def families(jobs: Sequence[Job]) -> list[list[Job]]:
    """Return the jobs in lists of those that may train together."""
    found: dict[object, list[Job]] = {}
    for number, job in enumerate(jobs):
        found.setdefault(family(job.config) or number, []).append(job)
    return list(found.values())


def open_together(jobs: Sequence[Job], open_job: Callable[[Job], tuple[Run, Path]]) -> list[tuple[Run, Path]]:
    """Open the first of the jobs, and as many of the next ones as are worth training together with it.

    All jobs are of one family. They form groups of about the same size, rather than large ones and a small rest.
    """
    opened = [open_job(jobs[0])]
    groups = -(-len(jobs) // _most(opened[0][0]))
    for job in jobs[1 : -(-len(jobs) // groups)]:
        try:
            opened.append(open_job(job))
        except FedsatError:  # it is reported when this job is the first
            break
    return opened


def _most(run: Run) -> int:
    """Return how many runs like this are worth training together."""
    engine = run.setup.engine
    return engine.runs_at_once(run.setup.config.per_round) if isinstance(engine, StackedEngine) else 1


def train_together(
    runs: Sequence[Run], *, show: RoundFunction | None = None
) -> Generator[tuple[int, Exception | None]]:
    """Train runs as `train` does, but all of them round by round. Yield the place of each as it ends, and its error.

    If the caller stops before all have ended, or the process is interrupted, the others end as interrupted. Completed
    runs leave no checkpoint.
    """
    for run in runs:
        if run.states is not None and run.setup.config.state_memory is None:
            run.states.memory //= len(runs)
    turns = {place: round_by_round(run, show=show, for_more=False) for place, run in enumerate(runs)}
    shared = SharedTraining()
    try:
        with signals_raise():
            while turns:
                for place in list(turns):
                    error: Exception | None = None
                    try:
                        next(turns[place])
                        continue
                    except StopIteration:
                        pass
                    except Exception as failure:
                        error = failure
                    del turns[place]
                    yield place, error
                shared.train_ahead([runs[place] for place in turns])
    except BaseException:
        for turn in turns.values():
            with suppress(FedsatError):  # the user must see the first error
                turn.close()
        raise


class SharedTraining:
    """Trains the next round of several runs in one stack."""

    def __init__(self) -> None:
        self._stack: Stack | None = None
        self._failed: list[StackedEngine] = []

    def train_ahead(self, runs: Sequence[Run]) -> None:
        """Train the next round of every run in which a client responds.

        If this fails, each run trains the round by itself, so that the one at fault ends with its own error. If none
        does, they go on by themselves.
        """
        asked = [(run.setup.engine, request) for run in runs if (request := run.request()) is not None]
        engines = [engine for engine, _ in asked if isinstance(engine, StackedEngine)]
        if len(engines) < 2 or engines == self._failed:
            return
        if self._stack is None or self._stack.engines != engines:
            self._stack = None  # frees its memory
            self._stack = Stack(engines)
        try:
            self._stack.train_ahead([request for _, request in asked])
        except Exception as error:
            logger.info("%d runs could not train together: %s", len(engines), error)
            self._failed, self._stack = engines, None
