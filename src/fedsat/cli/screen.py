"""What a user sees while a run goes on: a live bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from fedsat.experiment.run import Run
from fedsat.metrics import RoundRecord
from fedsat.report.tables import percent


class Watcher:
    """Shows the rounds of a run as they end. Use it as a context, and as `show` of `train`.

    Where there is no live bar, `lines` limits how many lines a run prints; without it every round has one.
    """

    def __init__(self, console: Console, label: str, played: int, rounds: int, lines: int | None = None) -> None:
        self._console, self._label, self._played, self._rounds = console, label, played, rounds
        self._every = max(1, rounds // lines) if lines else 1
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        self._seen = ""

    def __enter__(self) -> Watcher:
        if self._console.is_terminal:
            self._progress = Progress(
                TextColumn("{task.description}", style="bold", markup=False),
                BarColumn(bar_width=24),
                TextColumn("round {task.completed:.0f}/{task.total:.0f}"),
                TextColumn("{task.fields[seen]}", markup=False),
                TimeElapsedColumn(),
                TextColumn("left"),
                TimeRemainingColumn(),
                console=self._console,
            )
            self._task = self._progress.add_task(self._label, completed=self._played, total=self._rounds, seen="")
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress is not None:
            self._progress.stop()

    def __call__(self, run: Run, record: RoundRecord) -> None:
        """Show one more round."""
        self.show(record, run.setup.engine.class_names)

    def show(self, record: RoundRecord, class_names: Sequence[str]) -> None:
        """Show one more round from its record."""
        if record.evaluated:
            worst, metrics = class_names[record.worst_class], record.metrics
            accuracy, recall = percent(metrics["accuracy"]), percent(metrics["worst_class_recall"])
            self._seen = f"accuracy {accuracy}  worst class {recall} ({worst})"
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, completed=record.round, seen=self._seen)
        elif record.evaluated and record.round % self._every == self._rounds % self._every:
            spent = sum(record.seconds.values())
            self._console.print(
                f"{self._label}  round {record.round}/{self._rounds}  {self._seen}  {spent:.2f} s",
                markup=False,
                highlight=False,
                soft_wrap=True,
            )


def describe_setup(run: Run) -> str:
    """One line on what is about to be trained."""
    config, federation = run.setup.config, run.setup.federation
    weights = sum(tensor.numel() for tensor in run.model.params.values())
    if federation is None:
        return (
            f"{config.clients} nodes with their own data; {config.model['name']} with {weights:,} parameters; "
            f"{config.per_round} clients a round"
        )
    sizes = federation.sizes
    return (
        f"{federation.dataset.name}: {len(federation.dataset.train.labels):,} samples over {federation.clients} "
        f"clients ({sizes.min()} to {sizes.max()} each); {config.model['name']} with {weights:,} parameters; "
        f"{config.per_round} clients a round, {at_once(run)} on {run.setup.device}"
    )


def at_once(run: Run) -> str:
    """How many clients the engine trains side by side."""
    lanes = min(getattr(run.setup.engine, "lanes", 1), run.setup.config.per_round)
    return "one after another" if lanes == 1 else f"{lanes} at once"
