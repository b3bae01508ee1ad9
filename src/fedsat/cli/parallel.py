"""Several runs at once, each in a process of its own: for many small runs, which leave a large machine idle."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from fedsat.errors import TrainingError
from fedsat.experiment.config import Config


def train_apart(places: Mapping[Path, Config], processes: int) -> Iterator[tuple[Path, str | None]]:
    """Carry out the runs, `processes` at a time; yields each run's folder as it ends, with its error if it failed.

    Ctrl-C reaches the processes as well: each finishes its files before it ends.
    """
    context = multiprocessing.get_context("spawn")  # a forked process could not use a GPU
    threads = max(1, (os.cpu_count() or 1) // processes)
    executor = ProcessPoolExecutor(processes, context, initializer=_ignore_interrupts)
    try:
        futures: dict[Future[str | None], Path] = {
            executor.submit(_train, config.table(), folder, threads): folder for folder, config in places.items()
        }
        for future in as_completed(futures):
            yield futures[future], future.result()
    finally:
        executor.shutdown(cancel_futures=True)


def _ignore_interrupts() -> None:
    """A process that has nothing to do has nothing to finish."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _train(table: Mapping[str, Any], folder: Path, threads: int) -> str | None:
    """One run, in a process of the pool; returns what went wrong."""
    import torch  # noqa: PLC0415 (slow to import, and not needed where the pool is directed)

    from fedsat import experiment  # noqa: PLC0415

    torch.set_num_threads(threads)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        experiment.carry_on(experiment.prepare(Config.of(table), folder))
    except TrainingError as error:
        return str(error)
    except KeyboardInterrupt:
        return "interrupted"
    finally:
        _ignore_interrupts()
    return None
