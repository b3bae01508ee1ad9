"""Batches of runs, one after another or several at once. Finished runs are skipped; interrupted ones are resumed."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from fedsat.errors import FedsatError, TrainingError
from fedsat.experiment.callbacks import Callbacks, RoundFunction
from fedsat.experiment.interrupt import STOPPED
from fedsat.experiment.jobs import Job
from fedsat.experiment.parallel import Ended, RunTask, open_run, train_apart
from fedsat.experiment.run import Run, train
from fedsat.experiment.store import Shelf, StoredRun, identity
from fedsat.experiment.together import families, open_together, train_together


@dataclass(frozen=True)
class Shown:
    """A run that a display shows, and its label if it is one of many."""

    run: Run
    label: str | None = None


class Display(Protocol):
    """Shows progress and messages to the user."""

    def say(self, text: str) -> None:
        """Print a line."""

    def progress(self, runs: Sequence[Shown]) -> AbstractContextManager[RoundFunction | None]:
        """Show the rounds of runs that train at the same time; a run with a label is one of many."""


class Silent:
    """A display that shows nothing."""

    def say(self, text: str) -> None:
        """Print nothing."""

    def progress(self, runs: Sequence[Shown]) -> AbstractContextManager[RoundFunction | None]:
        """Show nothing."""
        del runs
        return nullcontext()


@dataclass
class Outcome:
    """The runs of a batch, and the errors of those that failed."""

    runs: list[StoredRun] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)

    def complain(self) -> None:
        """Raise an error if a run failed."""
        if self.failures:
            errors = "; ".join(f"{label}: {error}" for label, error in self.failures.items())
            raise FedsatError(f"{len(self.failures)} of {len(self.failures) + len(self.runs)} runs failed: {errors}")


def train_shown(display: Display, run: Run, callbacks: Callbacks = ()) -> None:
    """Train one run and show it."""
    with _showing(display, [Shown(run)]) as show:
        train(run, callbacks, show=show)


@contextmanager
def _showing(display: Display, runs: Sequence[Shown]) -> Iterator[RoundFunction | None]:
    """Show runs while they train, and say what is kept of them if they are stopped."""
    for note in dict.fromkeys(note for shown in runs for note in shown.run.notes):
        display.say(f"note: {note}")
    try:
        with display.progress(runs) as show:
            yield show
    except (*STOPPED, FedsatError) as end:
        for shown in runs:
            if shown.run.status != "completed":
                _say_kept(display, shown, end)
        raise


def _say_kept(display: Display, shown: Shown, end: BaseException) -> None:
    """Say how many rounds there are of a run that was stopped or has failed."""
    run = shown.run
    if run.folder is not None and run.folder.path.is_dir() and run.training.rounds:
        again = shown.label is None and run.checkpoints is not None and not isinstance(end, TrainingError)
        hint = f"; continue with fedsat resume {run.folder.path}" if again else ""
        display.say(f"{run.training.rounds} rounds are kept in {run.folder.path}{hint}")


def carry_out(
    display: Display,
    jobs: Sequence[Job],
    shelf: Shelf,
    processes: int = 1,
    keep: Callable[[Sequence[StoredRun]], object] = lambda _: None,
) -> Outcome:
    """Return the run of every job, training those that `shelf` lacks, `processes` at a time.

    `keep` is called with each run as it ends. A run that diverges does not stop the others. Ctrl-C does; the same call
    then continues where it stopped.
    """
    outcome = Outcome()
    # Two jobs may need the same run.
    wanted = {identity(job.config.table()): job for job in jobs if shelf.find(job.config) is None}
    there = [run for job in jobs if (run := shelf.find(job.config)) is not None]
    if there:
        display.say(f"{len(there)} of {len(jobs)} runs are done already")
    keep(there)  # even if there are none, so that an error in `keep` appears now and not after hours of training
    train_all = _in_stacks if processes == 1 else _side_by_side
    try:
        with closing(train_all(display, list(wanted.values()), shelf, processes)) as ends:
            for ended in ends:
                if ended.error is None:
                    keep([shelf.add(ended.folder)])
                else:
                    outcome.failures[ended.label] = ended.error
                    display.say(f"{ended.label} failed: {ended.error}")
    except STOPPED:
        done = sum(shelf.find(job.config) is not None for job in jobs)
        display.say(f"{done} of {len(jobs)} runs are done; repeat the command to continue")
        raise
    outcome.runs = [run for job in jobs if (run := shelf.find(job.config)) is not None]
    return outcome


def _in_stacks(display: Display, jobs: Sequence[Job], shelf: Shelf, _: int) -> Generator[Ended]:
    """Train the runs in this process: those together that gain by it, and the others one after another."""
    numbers = itertools.count(1)
    for jobs_alike in families(jobs):
        waiting = jobs_alike
        while waiting:
            opened = open_together(
                waiting, lambda job: open_run(job.config, shelf.unfinished(job.config), shelf.place(job.label))
            )
            group, waiting = waiting[: len(opened)], waiting[len(opened) :]
            labels = [f"[{next(numbers)}/{len(jobs)}] {job.label}" for job in group]
            shown = [Shown(run, label) for (run, _), label in zip(opened, labels, strict=True)]
            with (
                _showing(display, shown) as show,
                closing(train_together([run for run, _ in opened], show=show)) as ends,
            ):
                for place, error in ends:
                    if isinstance(error, TrainingError):
                        _say_kept(display, shown[place], error)
                    elif error is not None:
                        raise error
                    yield Ended(group[place].label, opened[place][1], str(error) if error else None)


def _side_by_side(display: Display, jobs: Sequence[Job], shelf: Shelf, processes: int) -> Generator[Ended]:
    tasks: dict[Path, RunTask] = {}
    for job in jobs:
        fresh = shelf.place(job.label, tasks)
        table = {**job.config.table(), "dataset": job.config.dataset}
        tasks[fresh] = RunTask(job.label, table, shelf.unfinished(job.config), fresh)
    for number, ended in enumerate(train_apart(list(tasks.values()), processes), start=1):
        for note in ended.notes:
            display.say(f"{ended.label}  note: {note}")
        if ended.error is None:
            summary = StoredRun.read(ended.folder).summary
            found = (
                f"accuracy {100 * summary['last_ten']['accuracy']:.1f}" if "last_ten" in summary else "not evaluated"
            )
            display.say(f"[{number}/{len(jobs)}] {ended.label}  {found} in {summary['seconds']:.0f} s")
        yield ended
