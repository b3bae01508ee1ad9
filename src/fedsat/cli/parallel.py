"""Several runs at once, each in a process of its own: for many small runs, which leave a large machine idle."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fedsat import experiment
from fedsat.errors import FedsatError, UsageError, in_a_line
from fedsat.experiment import Run
from fedsat.experiment.config import Config
from fedsat.experiment.interrupt import STOPPED, sigterm_raises


@dataclass(frozen=True)
class Task:
    """A run to be carried out: where it was begun, if it was, and where else it goes."""

    label: str
    table: dict[str, Any]
    """Its configuration as plain values: a process that has just begun does not know a user's classes yet."""
    begun: Path | None
    fresh: Path


@dataclass(frozen=True)
class Ended:
    """A run that has ended, and what went wrong if it did."""

    label: str
    folder: Path
    error: str | None
    notes: Sequence[str] = ()
    """What a user should know about it and has not been told yet."""


def open_run(config: Config, begun: Path | None, fresh: Path) -> tuple[Run, Path]:
    """A run ready to be carried out, and its folder: taken up in `begun` if it can be, or else a new one in `fresh`.

    Its notes say why it could not be taken up.
    """
    hindered = None
    if begun is not None:
        try:
            return experiment.load_checkpointed(begun), begun
        except FedsatError as error:
            hindered = f"{error}; it begins anew in {fresh}"
    run = experiment.prepare(config, fresh)
    if hindered is not None:
        run.setup.notes.insert(0, hindered)
    return run, fresh


def train_apart(tasks: Sequence[Task], processes: int) -> Iterator[Ended]:
    """Carry out runs, `processes` at a time; yields each as it ends.

    A run that fails does not stop the others, unless what was asked for is wrong. Asked to stop, by Ctrl-C or SIGTERM,
    it passes that on, and each run finishes its files before its process ends.
    """
    context = multiprocessing.get_context("spawn")  # a forked process could not use a GPU
    threads = max(1, (os.cpu_count() or 1) // processes)
    executor = ProcessPoolExecutor(processes, context, initializer=_leave_interrupts_to_the_parent)
    waiting = iter(tasks)
    running: set[Future[Ended]] = set()
    try:
        with sigterm_raises():
            # One task a process: whatever the pool had fetched ahead it would still carry out after Ctrl-C.
            for task in itertools.islice(waiting, processes):
                running.add(executor.submit(_train, task, threads))
            while running:
                future = next(as_completed(running))
                running.remove(future)
                for task in itertools.islice(waiting, 1):
                    running.add(executor.submit(_train, task, threads))
                yield future.result()
    except BrokenProcessPool as error:
        why = "a run's process was killed, perhaps because memory ran out; fewer --jobs need less"
        raise FedsatError(f"{why}, and the same command goes on from here") from error
    except BaseException:
        for process in multiprocessing.active_children():
            process.terminate()
        raise
    finally:
        executor.shutdown(cancel_futures=True)


def _leave_interrupts_to_the_parent() -> None:
    """A terminal sends Ctrl-C to all processes at once; one of them is to say what happens then."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _train(task: Task, threads: int) -> Ended:
    """One run, in a process of the pool."""
    torch.set_num_threads(threads)
    folder, notes, failure = task.fresh, list[str](), None
    try:
        run, folder = open_run(Config.of(task.table), task.begun, task.fresh)
        notes = run.notes
        experiment.train(run, for_more=False)
    except UsageError:
        raise
    except STOPPED:
        failure = "interrupted"
    except Exception as error:
        failure = in_a_line(error)
    return Ended(task.label, folder, failure, notes)
