"""The progress of a run: a live bar on terminals and in notebooks, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from fedsat.experiment.run import Run
from fedsat.metrics import RoundRecord
from fedsat.report.tables import percent


class Watcher:
    """Shows the rounds of a run as they finish. It is a context manager, and a callback of the run.

    Without a live bar, one line is printed for each round, or about `lines` lines in total.
    """

    def __init__(self, console: Console, label: str, finished: int, rounds: int, lines: int | None = None) -> None:
        self._console, self._label, self._finished, self._rounds = console, label, finished, rounds
        self._every = max(1, rounds // lines) if lines else 1
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        self._metrics = ""

    def __enter__(self) -> Watcher:
        if self._console.is_terminal or self._console.is_jupyter:
            self._progress = Progress(
                TextColumn("{task.description}", style="bold", markup=False),
                BarColumn(bar_width=24),
                TextColumn("round {task.completed:.0f}/{task.total:.0f}"),
                TextColumn("{task.fields[metrics]}", markup=False),
                TimeElapsedColumn(),
                TextColumn("left"),
                TimeRemainingColumn(),
                console=self._console,
            )
            self._task = self._progress.add_task(self._label, completed=self._finished, total=self._rounds, metrics="")
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress is not None:
            self._progress.stop()

    def __call__(self, run: Run, record: RoundRecord) -> None:
        """Show a round that has finished."""
        self.show(record, run.setup.engine.class_names)

    def show(self, record: RoundRecord, class_names: Sequence[str]) -> None:
        """Show a round that has finished, given its record."""
        if record.evaluated:
            worst, metrics = class_names[record.worst_class], record.metrics
            accuracy, recall = percent(metrics["accuracy"]), percent(metrics["worst_class_recall"])
            self._metrics = f"accuracy {accuracy}  worst-class recall {recall} ({worst})"
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, completed=record.round, metrics=self._metrics)
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

    def progress(self, run: Run, label: str | None) -> Watcher:
        """Show the rounds of a run; a label means that it is one of several."""
        config = run.setup.config
        lines = None if label is None else 3
        return Watcher(self._console, label or config.method, run.training.rounds, config.rounds, lines)


def say(console: Console, text: str) -> None:
    """Print a line without markup."""
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
