"""The progress of a run on a console: a live bar on terminals, plain lines elsewhere."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from fedsat.experiment.batch import Shown
from fedsat.experiment.callbacks import RoundFunction
from fedsat.experiment.run import Run
from fedsat.metrics import RoundRecord
from fedsat.report.tables import percent

BESIDE_BAR = 78
"""The columns that everything beside the bar takes."""


def bars_on(console: Console) -> AbstractContextManager[Progress | None]:
    """Show live bars if the console can."""
    if not console.is_terminal:
        return nullcontext()
    return Progress(
        TextColumn("{task.description}", style="bold", markup=False),
        BarColumn(bar_width=max(4, min(24, console.width - BESIDE_BAR))),
        TextColumn("{task.completed:.0f}/{task.total:.0f}"),
        TextColumn("{task.fields[metrics]}", markup=False),
        TimeRemainingColumn(),
        TextColumn("left"),
        console=console,
    )


def describe_metrics(record: RoundRecord, class_names: Sequence[str]) -> str:
    """Return the main metrics of a round, or nothing if it was not evaluated."""
    if not record.evaluated:
        return ""
    worst, metrics = class_names[record.worst_class], record.metrics
    accuracy, recall = percent(metrics["accuracy"]), percent(metrics["worst_class_recall"])
    return f"accuracy {accuracy}  worst-class recall {recall} ({worst})"


class Watcher:
    """Shows the rounds of a run as they finish: in a bar of its own among `bars`, if there are any.

    Without bars, one line is printed for each round, or about `lines` lines in total.
    """

    def __init__(
        self, console: Console, bars: Progress | None, label: str, finished: int, rounds: int, lines: int | None = None
    ) -> None:
        self._console, self._bars, self._label, self._rounds = console, bars, label, rounds
        self._every = max(1, rounds // lines) if lines else 1
        self._task = None if bars is None else bars.add_task(label, completed=finished, total=rounds, metrics="")
        self._metrics = ""

    def show(self, record: RoundRecord, class_names: Sequence[str]) -> None:
        """Show a round that has finished, given its record."""
        self._metrics = describe_metrics(record, class_names) or self._metrics
        if self._bars is not None and self._task is not None:
            shown = self._metrics.replace(" recall", "")  # bars have less space than lines
            self._bars.update(self._task, completed=record.round, metrics=shown)
        elif record.evaluated and record.round % self._every == self._rounds % self._every:
            spent = sum(record.seconds.values())
            self._console.print(
                f"{self._label}  round {record.round}/{self._rounds}  {self._metrics}  {spent:.2f} s",
                markup=False,
                highlight=False,
                soft_wrap=True,
            )


class ConsoleDisplay:
    """Shows runs on a console. Without a live bar, each of several runs prints about three lines."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def say(self, text: str) -> None:
        """Print a line."""
        say(self._console, text)

    @contextmanager
    def progress(self, runs: Sequence[Shown]) -> Iterator[RoundFunction]:
        """Show the rounds of runs that train at the same time; a run with a label is one of many."""
        with bars_on(self._console) as bars:
            watchers = {id(shown.run): self._watcher(bars, shown) for shown in runs}
            yield lambda run, record: watchers[id(run)].show(record, run.setup.engine.class_names)

    def _watcher(self, bars: Progress | None, shown: Shown) -> Watcher:
        config, finished = shown.run.setup.config, shown.run.training.rounds
        lines = None if shown.label is None else 3
        return Watcher(self._console, bars, shown.label or config.method, finished, config.rounds, lines)


def say(console: Console, text: str) -> None:
    """Print a line without markup. On terminals, it is broken between words; paths and names stay whole."""
    if console.is_terminal:
        text = textwrap.fill(text, console.width, break_long_words=False, break_on_hyphens=False)
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def describe_setup(run: Run) -> str:
    """One line that describes the data, the model and the protocol of a run."""
    config, federation = run.setup.config, run.setup.federation
    weights = sum(tensor.numel() for tensor in run.model.params.values())
    if federation is None:
        return (
            f"{config.clients} nodes with their own data; {config.model['name']} with {weights:,} parameters; "
            f"{config.per_round} clients per round"
        )
    sizes = federation.class_mixes.sum(axis=1)
    return (
        f"{federation.dataset.name}: {len(federation.dataset.train.labels):,} samples over {federation.clients} "
        f"clients ({sizes.min()} to {sizes.max()} each); {config.model['name']} with {weights:,} parameters; "
        f"{config.per_round} clients per round, {parallelism(run)} on {run.setup.device}"
    )


def parallelism(run: Run) -> str:
    """How many clients the engine trains at once."""
    lanes = min(getattr(run.setup.engine, "lanes", 1), run.setup.config.per_round)
    return "one after another" if lanes == 1 else f"{lanes} at once"
