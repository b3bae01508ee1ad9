"""Many runs one after the other: what is done is skipped, what was begun goes on, what fails is told at the end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from fedsat import experiment
from fedsat.cli.screen import Watcher, describe_setup
from fedsat.errors import FedsatError, TrainingError
from fedsat.experiment import Run
from fedsat.experiment.config import Config
from fedsat.experiment.interrupt import STOPPED
from fedsat.experiment.store import Shelf, StoredRun


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


def train(console: Console, run: Run, label: str | None = None, lines: int | None = None) -> None:
    """Carry out one run under the user's eyes; `lines` limits what is printed where there is no live bar.

    One with a label is one of many, and nobody is to go on from it when it is done.
    """
    config = run.setup.config
    if label is None:
        say(console, describe_setup(run))
    for note in run.notes:
        say(console, f"note: {note}")
    try:
        with Watcher(console, label or config.method, run.training.rounds, config.rounds, lines) as watcher:
            experiment.carry_on(run, watcher, for_more=label is None)
    except (*STOPPED, FedsatError) as end:
        if run.folder is not None and run.folder.path.is_dir():
            again = label is None and run.checkpoints is not None and not isinstance(end, TrainingError)
            hint = f"; fedsat resume {run.folder.path} goes on" if again else ""
            say(console, f"{run.training.rounds} rounds are kept in {run.folder.path}{hint}")
        raise


def carry_out(console: Console, jobs: Sequence[Job], shelf: Shelf) -> Outcome:
    """Have every job's run: from the shelf, or trained now.

    A training that diverges does not stop the others. Ctrl-C does; the same command then goes on where it was.
    """
    outcome = Outcome()
    found = [shelf.find(job.config) for job in jobs]
    done = sum(run is not None for run in found)
    if done:
        say(console, f"{done} of {len(jobs)} runs are done already")
    for number, (job, run) in enumerate(zip(jobs, found, strict=True), start=1):
        run = run or shelf.find(job.config)  # noqa: PLW2901 (two jobs may ask for the same run)
        if run is not None:
            outcome.runs.append(run)
            continue
        try:
            begun, folder = begin(console, job, shelf)
            train(console, begun, f"[{number}/{len(jobs)}] {job.label}", lines=3)
            outcome.runs.append(shelf.add(folder))
        except TrainingError as error:
            outcome.failures[job.label] = str(error)
            say(console, f"{job.label} failed: {error}")
        except STOPPED:
            say(console, f"{len(outcome.runs)} of {len(jobs)} runs are done; the same command goes on from here")
            raise
    return outcome


def begin(console: Console, job: Job, shelf: Shelf) -> tuple[Run, Path]:
    """A job's run ready to be carried out: taken up where it was interrupted if it can be, or else a new one."""
    folder = shelf.unfinished(job.config)
    if folder is not None:
        try:
            return experiment.take_up(folder), folder
        except FedsatError as error:
            say(console, f"note: {error}; {job.label} begins anew")
    folder = shelf.place(job.label)
    return experiment.prepare(job.config, folder), folder


def say(console: Console, text: str) -> None:
    """Print a line as it is."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)
