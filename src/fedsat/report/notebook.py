"""The progress of runs in a notebook: a few lines of output that change."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from fedsat.experiment.batch import Shown
from fedsat.experiment.callbacks import RoundFunction
from fedsat.experiment.run import Run
from fedsat.metrics import RoundRecord
from fedsat.report.progress import describe_metrics


class NotebookDisplay:
    """Shows runs in a notebook, without ipywidgets, which rich needs for its bars there."""

    def say(self, text: str) -> None:
        """Print a line."""
        print(text)

    @contextmanager
    def progress(self, runs: Sequence[Shown]) -> Iterator[RoundFunction]:
        """Show the rounds of runs that train at the same time, one line for each run."""
        from IPython.display import display  # noqa: PLC0415 (only notebooks have it)

        lines = {id(shown.run): _line(shown.run, shown.label, "") for shown in runs}
        labels = {id(shown.run): shown.label for shown in runs}
        handle = display(_text(lines.values()), raw=True, display_id=True)

        def show(run: Run, record: RoundRecord) -> None:
            lines[id(run)] = _line(run, labels[id(run)], describe_metrics(record, run.setup.engine.class_names))
            handle.update(_text(lines.values()), raw=True)

        yield show


def _line(run: Run, label: str | None, metrics: str) -> str:
    config = run.setup.config
    return f"{label or config.method}  round {run.training.rounds}/{config.rounds}  {metrics}".rstrip()


def _text(lines: Iterable[str]) -> dict[str, str]:
    return {"text/plain": "\n".join(lines)}
