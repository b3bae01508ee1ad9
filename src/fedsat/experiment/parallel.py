"""Several runs at once, each in its own process. A single small run cannot use all of a large machine."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import partial
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from typing import Any

import torch

from fedsat.errors import FedsatError, UsageError, in_a_line
from fedsat.experiment.config import Config
from fedsat.experiment.interrupt import STOPPED, signals_raise
from fedsat.experiment.resume import restore
from fedsat.experiment.run import Run, prepare, train
from fedsat.threads import bound_spinning


@dataclass(frozen=True)
class RunTask:
    """A run to train: the folder of its interrupted run, if there is one, and a new folder otherwise."""

    label: str
    table: dict[str, Any]
    """Its configuration as plain values, because a new process has not imported the user's classes, and its dataset."""
    begun: Path | None
    fresh: Path


@dataclass(frozen=True)
class Ended:
    """A run that has ended, and its error if it failed."""

    label: str
    folder: Path
    error: str | None
    notes: Sequence[str] = ()
    """Notes for the user."""


def open_run(config: Config, begun: Path | None, fresh: Path) -> tuple[Run, Path]:
    """Return a run that is ready to train, and its folder: resumed from `begun` if possible, otherwise new in `fresh`.

    If it could not be resumed, its notes say why.
    """
    hindered = None
    if begun is not None:
        try:
            return restore(begun, dataset=config.dataset), begun
        except FedsatError as error:
            hindered = f"{error}; starting again in {fresh}"
    run = prepare(config, fresh)
    if hindered is not None:
        run.setup.notes.insert(0, hindered)
    return run, fresh


def train_apart(tasks: Sequence[RunTask], processes: int) -> Iterator[Ended]:
    """Train runs, `processes` at a time, and yield each as it ends.

    With several GPUs, the processes take them in turn. A failing run does not stop the others, unless its settings are
    wrong. Ctrl-C, SIGTERM and SIGHUP are passed on to the processes, and each completes its files before it ends.
    """
    bound_spinning()  # for the new processes, which inherit the environment
    context = multiprocessing.get_context("spawn")  # a forked process could not use a GPU
    threads = max(1, (os.cpu_count() or 1) // processes)
    begins = partial(_begin, context.Value("i", 0), gpus_to_share(task.table["device"] for task in tasks))
    executor = ProcessPoolExecutor(processes, context, initializer=begins)
    waiting = iter(tasks)
    running: set[Future[Ended]] = set()
    try:
        with signals_raise():
            # One task per process: the pool would still execute tasks that it had fetched ahead after Ctrl-C.
            for task in itertools.islice(waiting, processes):
                running.add(executor.submit(_train, task, threads))
            while running:
                future = next(as_completed(running))
                running.remove(future)
                for task in itertools.islice(waiting, 1):
                    running.add(executor.submit(_train, task, threads))
                yield future.result()
    except BrokenProcessPool as error:
        why = "the process of a run was killed, perhaps for lack of memory; try fewer --jobs"
        raise FedsatError(f"{why}. Repeat the command to continue") from error
    except BaseException:
        for process in multiprocessing.active_children():
            process.terminate()
        raise
    finally:
        executor.shutdown(cancel_futures=True)


def gpus_to_share(devices: Iterable[str]) -> list[str]:
    """Return the GPUs that processes take in turn; none if there is only one, or if a run names its own."""
    count = torch.cuda.device_count()
    if count < 2 or not set(devices) <= {"auto", "cuda", "cuda:all"}:
        return []
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return visible.split(",") if visible else [str(index) for index in range(count)]


def _begin(started: Synchronized[int], gpus: Sequence[str]) -> None:
    """Prepare a new process: it ends with its parent, and sees only its own GPU."""
    _follow_the_parent()
    if gpus:
        with started.get_lock():
            place, started.value = started.value, started.value + 1
        os.environ["CUDA_VISIBLE_DEVICES"] = gpus[place % len(gpus)]


def _follow_the_parent() -> None:
    """Ignore what a terminal sends to all processes at once, because the parent handles it; and end with the parent."""
    for number in ("SIGINT", "SIGHUP"):
        if hasattr(signal, number):
            signal.signal(getattr(signal, number), signal.SIG_IGN)
    threading.Thread(target=_end_with_the_parent, daemon=True).start()


def _end_with_the_parent() -> None:
    """Wait until the parent has ended, even if it was killed, and end at once; a checkpoint is never half written."""
    if (parent := multiprocessing.parent_process()) is not None:
        parent.join()
        os._exit(1)


def _train(task: RunTask, threads: int) -> Ended:
    """Train one run in a process of the pool."""
    torch.set_num_threads(threads)
    folder, notes, failure = task.fresh, list[str](), None
    try:
        run, folder = open_run(Config.of(task.table), task.begun, task.fresh)
        notes = run.notes
        train(run, for_more=False)
    except UsageError:
        raise
    except STOPPED:
        failure = "interrupted"
    except Exception as error:
        failure = in_a_line(error)
    return Ended(task.label, folder, failure, notes)
