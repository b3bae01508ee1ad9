"""Many runs, one by one or several at once: what is done is skipped, what fails told at the end, Ctrl-C loses one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from fedsat import experiment
from fedsat.cli.parallel import train_apart
from fedsat.cli.screen import Watcher, describe_setup
from fedsat.errors import FedsatError, TrainingError
from fedsat.experiment.config import Config
from fedsat.experiment.store import Shelf, StoredRun, identity
from fedsat.report.tables import percent


@dataclass(frozen=True)
class Job:
    """A run to be had, and what it is called on screen and on disk."""

    label: str
    config: Config


@dataclass
class Outcome:
    """What became of the jobs."""

    runs: list[StoredRun] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)

    def complain(self) -> None:
        """Raise an error if a run failed."""
        if self.failures:
            told = "; ".join(f"{label}: {error}" for label, error in self.failures.items())
            raise FedsatError(f"{len(self.failures)} of {len(self.failures) + len(self.runs)} runs failed: {told}")


def train(console: Console, config: Config, folder: Path, label: str | None = None, lines: int | None = None) -> None:
    """Carry out one run under the user's eyes; `lines` limits what is printed where there is no live bar."""
    prepared = experiment.prepare(config, folder)
    if label is None:
        say(console, describe_setup(prepared))
    for note in prepared.notes:
        say(console, f"note: {note}")
    try:
        with Watcher(console, label or config.method, config.rounds, lines) as watcher:
            experiment.carry_on(prepared, watcher)
    except (KeyboardInterrupt, FedsatError):
        say(console, f"{prepared.training.rounds} rounds are kept in {folder}")
        raise


def carry_out(console: Console, jobs: Sequence[Job], shelf: Shelf, processes: int = 1) -> Outcome:
    """Have every job's run: from the shelf, or trained now, `processes` at a time.

    A training that diverges does not stop the others. Ctrl-C does; the same command then goes on where it was.
    """
    outcome = Outcome()
    # Two jobs may ask for the same run.
    wanted = {identity(job.config.table()): job for job in jobs if shelf.find(job.config) is None}
    if done := sum(shelf.find(job.config) is not None for job in jobs):
        say(console, f"{done} of {len(jobs)} runs are done already")
    train_all = _one_by_one if processes == 1 else _side_by_side
    try:
        for label, folder, error in train_all(console, list(wanted.values()), shelf, processes):
            if error is None:
                shelf.add(folder)
            else:
                outcome.failures[label] = error
                say(console, f"{label} failed: {error}")
    except KeyboardInterrupt:
        done = sum(shelf.find(job.config) is not None for job in jobs)
        say(console, f"{done} of {len(jobs)} runs are done; the same command goes on from here")
        raise
    outcome.runs = [run for job in jobs if (run := shelf.find(job.config)) is not None]
    return outcome


Ended = Iterator[tuple[str, Path, str | None]]
"""Runs as they end: the job's label, the folder, what went wrong."""


def _one_by_one(console: Console, jobs: Sequence[Job], shelf: Shelf, _: int) -> Ended:
    for number, job in enumerate(jobs, start=1):
        folder, error = shelf.place(job.label), None
        try:
            train(console, job.config, folder, f"[{number}/{len(jobs)}] {job.label}", lines=3)
        except TrainingError as failure:
            error = str(failure)
        yield job.label, folder, error


def _side_by_side(console: Console, jobs: Sequence[Job], shelf: Shelf, processes: int) -> Ended:
    places: dict[Path, Job] = {}
    for job in jobs:
        places[shelf.place(job.label, places)] = job
    ended = train_apart({folder: job.config for folder, job in places.items()}, processes)
    for number, (folder, error) in enumerate(ended, start=1):
        label = places[folder].label
        if error is None:
            summary = StoredRun.read(folder).summary
            came_to = f"accuracy {percent(summary['last_ten']['test_accuracy'])} in {summary['seconds']:.0f} s"
            say(console, f"[{number}/{len(jobs)}] {label}  {came_to}")
        yield label, folder, error


def say(console: Console, text: str) -> None:
    """Print a line as it is."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)
