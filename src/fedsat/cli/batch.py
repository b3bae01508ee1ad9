"""Many runs, one by one or several at once: what is done is skipped, what was begun goes on, what fails is told."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from fedsat import experiment
from fedsat.cli.parallel import Ended, Task, open_run, train_apart
from fedsat.cli.screen import Watcher, describe_setup
from fedsat.errors import FedsatError, TrainingError
from fedsat.experiment import Callbacks, Run
from fedsat.experiment.config import Config
from fedsat.experiment.interrupt import STOPPED
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


def train(
    console: Console, run: Run, label: str | None = None, lines: int | None = None, callbacks: Callbacks = ()
) -> None:
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
            experiment.train(run, callbacks, show=watcher, for_more=label is None)
    except (*STOPPED, FedsatError) as end:
        if run.folder is not None and run.folder.path.is_dir():
            again = label is None and run.checkpoints is not None and not isinstance(end, TrainingError)
            hint = f"; fedsat resume {run.folder.path} goes on" if again else ""
            say(console, f"{run.training.rounds} rounds are kept in {run.folder.path}{hint}")
        raise


def carry_out(
    console: Console,
    jobs: Sequence[Job],
    shelf: Shelf,
    processes: int = 1,
    keep: Callable[[Sequence[StoredRun]], object] = lambda _: None,
) -> Outcome:
    """Have every job's run: from the shelf, or trained now, `processes` at a time; `keep` gets what is done at once.

    A training that diverges does not stop the others. Ctrl-C does; the same command then goes on where it was.
    """
    outcome = Outcome()
    # Two jobs may ask for the same run.
    wanted = {identity(job.config.table()): job for job in jobs if shelf.find(job.config) is None}
    there = [run for job in jobs if (run := shelf.find(job.config)) is not None]
    if there:
        say(console, f"{len(there)} of {len(jobs)} runs are done already")
    keep(there)  # even if there are none: where they cannot be kept, nobody wants to hear of it hours later
    train_all = _one_by_one if processes == 1 else _side_by_side
    try:
        with closing(train_all(console, list(wanted.values()), shelf, processes)) as ends:
            for ended in ends:
                if ended.error is None:
                    keep([shelf.add(ended.folder)])
                else:
                    outcome.failures[ended.label] = ended.error
                    say(console, f"{ended.label} failed: {ended.error}")
    except STOPPED:
        done = sum(shelf.find(job.config) is not None for job in jobs)
        say(console, f"{done} of {len(jobs)} runs are done; the same command goes on from here")
        raise
    outcome.runs = [run for job in jobs if (run := shelf.find(job.config)) is not None]
    return outcome


def _one_by_one(console: Console, jobs: Sequence[Job], shelf: Shelf, _: int) -> Generator[Ended]:
    for number, job in enumerate(jobs, start=1):
        run, folder = open_run(job.config, shelf.unfinished(job.config), shelf.place(job.label))
        error = None
        try:
            train(console, run, f"[{number}/{len(jobs)}] {job.label}", lines=3)
        except TrainingError as failure:
            error = str(failure)
        yield Ended(job.label, folder, error)


def _side_by_side(console: Console, jobs: Sequence[Job], shelf: Shelf, processes: int) -> Generator[Ended]:
    tasks: dict[Path, Task] = {}
    for job in jobs:
        fresh = shelf.place(job.label, tasks)
        tasks[fresh] = Task(job.label, job.config.table(), shelf.unfinished(job.config), fresh)
    for number, ended in enumerate(train_apart(list(tasks.values()), processes), start=1):
        for note in ended.notes:
            say(console, f"{ended.label}  note: {note}")
        if ended.error is None:
            summary = StoredRun.read(ended.folder).summary
            came_to = f"accuracy {percent(summary['last_ten']['accuracy'])} in {summary['seconds']:.0f} s"
            say(console, f"[{number}/{len(jobs)}] {ended.label}  {came_to}")
        yield ended


def say(console: Console, text: str) -> None:
    """Print a line as it is."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)
