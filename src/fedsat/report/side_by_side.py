"""Comparisons as objects, for notebooks and scripts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedsat.errors import UsageError, unknown
from fedsat.experiment.store import StoredRun
from fedsat.report.chart_data import chart_data, curve_data
from fedsat.report.comparison import ComparisonTable, compared_metrics, comparison
from fedsat.report.export import write_table
from fedsat.report.groups import Group, common_settings, find_runs, group_runs
from fedsat.report.page import html_table, write_page

if TYPE_CHECKING:
    import pandas as pd  # type: ignore[import-untyped]
    from matplotlib.figure import Figure


@dataclass(repr=False)
class Comparison:
    """Runs side by side: as a table, a data frame, charts, a page, and files for papers."""

    runs: Sequence[StoredRun]
    target: float | None = None
    """An accuracy; if given, the table shows the rounds until each method reaches and keeps it."""
    failures: Mapping[str, str] = field(default_factory=dict)
    """The runs that failed, with their errors."""

    def __post_init__(self) -> None:
        self.runs = list(self.runs)
        if not self.groups:
            raise UsageError("none of these runs has an evaluated round yet, so there is nothing to show")

    @staticmethod
    def of(folders: Iterable[Path], target: float | None = None) -> Comparison:
        """The runs in the given folders, which can be runs or contain runs."""
        return Comparison(find_runs(folders), target)

    @cached_property
    def groups(self) -> list[Group]:
        """Groups of runs that differ only in their seed."""
        return group_runs(self.runs)

    @cached_property
    def table(self) -> ComparisonTable:
        """The table that the command line prints."""
        return comparison(self.groups, self.target)

    def __repr__(self) -> str:
        cells = [self.table.headings, *([text for text, _ in row] for row in self.table.rows)]
        widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
        lines = [
            "  ".join([row[0].ljust(widths[0]), *(text.rjust(w) for text, w in zip(row[1:], widths[1:], strict=True))])
            for row in cells
        ]
        return "\n".join([common_settings(self.groups), *lines])

    def _repr_html_(self) -> str:
        return html_table(self.table, common_settings(self.groups))

    def to_pandas(self) -> pd.DataFrame:
        """One row for each run and model. Metrics are means of the last ten rounds."""
        try:
            import pandas as pd  # noqa: PLC0415 (an extra)
        except ImportError as error:
            raise UsageError("to_pandas needs pandas; install it with pip install 'fedsat[pandas]'") from error
        return pd.DataFrame([row for group in self.groups for run in group.runs for row in _rows(group, run)])

    def plot(self, metric: str = "accuracy") -> Figure:
        """Plot a metric over the rounds: lines are means over seeds, bands range from the lowest to the highest."""
        from fedsat.report.figures import curve_figure  # noqa: PLC0415 (matplotlib is slow to import)

        curves = {each.name: curve_data(each) for each in compared_metrics(self.groups)}
        if metric not in curves:
            raise unknown("metric", metric, curves)
        return curve_figure(chart_data(self.groups)["groups"], curves[metric])

    def write_table(self, path: str | Path) -> Path:
        """Write the table as CSV (numbers) or LaTeX (text), depending on the suffix of `path`, and return the path."""
        return write_table(self.groups, Path(path), self.target)

    def write_figures(self, folder: str | Path) -> list[Path]:
        """Write every chart of the report page as PNG, SVG and PDF to `folder`, and return the paths."""
        from fedsat.report.figures import write_figures  # noqa: PLC0415 (matplotlib is slow to import)

        return write_figures(self.groups, Path(folder))

    def report(self, path: str | Path = "report.html") -> Path:
        """Write the report page with table, charts and configurations, and return its path."""
        return write_page(self.groups, Path(path), self.target)


def _rows(group: Group, run: StoredRun) -> list[dict[str, Any]]:
    found = []
    for model, numbers in {"global": run.summary, **run.summary.get("models", {})}.items():
        found.append(
            {
                "label": group.label,
                "method": run.method,
                "seed": run.seed,
                "model": model,
                **numbers["last_ten"],
                "best_accuracy": numbers["best"]["accuracy"],
                "best_round": numbers["best"]["round"],
                "rounds": run.summary["rounds"],
                "seconds": run.summary["seconds"],
                "bytes_down": run.summary["bytes_down"],
                "bytes_up": run.summary["bytes_up"],
                **({"epsilon": run.summary["epsilon"]} if "epsilon" in run.summary else {}),
                "folder": str(run.folder),
            }
        )
    return found
