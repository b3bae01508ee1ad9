"""An overview of all methods in all settings: one line for each setting of the paper's tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from reproduction.results import Result, by_cell
from reproduction.studies import METHODS, STUDIES, Study, cells

TABLES = ("table-ls", "table-lsmc", "table-lqsmc")


MEASURES = {
    "Accuracy": "accuracy_last_ten",
    "Worst-class recall": "worst_class_last_ten",
    "Worst-client accuracy": "lowest_client_last_ten",
}
"""The measures of the overview, and their columns in the results."""


@dataclass(frozen=True)
class Row:
    """A setting, and the result of each method: the mean over the seeds that all of them have."""

    where: str
    numbers: dict[str, float]
    seeds: str

    def line(self) -> str:
        """Return the line of a table, with the best value in bold."""
        best = f"{max(self.numbers.values()):.2f}"
        words = [f"{self.numbers[method]:.2f}" if method in self.numbers else "–" for method in METHODS]
        return f"| {' | '.join([self.where, *(f'**{w}**' if w == best else w for w in words), self.seeds])} |"


def overview(kept: Mapping[tuple[str, str], Sequence[Result]], column: str) -> list[str]:
    """Return a table of results by study and scale, without runs of methods whose options were changed.

    Full and short runs have separate means, because they are not comparable.
    """
    lines = []
    for scale in ("full", "short"):
        rows = [row for name in TABLES for row in _rows(STUDIES[name], scale, kept.get((name, scale), ()), column)]
        whole = [row.numbers for row in rows if len(row.numbers) == len(METHODS)]
        if len(whole) > 1:
            means = {method: float(np.mean([numbers[method] for numbers in whole])) for method in METHODS}
            rows.append(Row(f"mean of the {len(whole)} settings with all methods, {scale}", means, ""))
        lines += [row.line() for row in rows]
    heading = [f"| | {' | '.join(METHODS)} | seeds |", "|---|" + "---:|" * (len(METHODS) + 1)]
    return [*heading, *lines] if lines else []


def _rows(study: Study, scale: str, results: Sequence[Result], column: str) -> list[Row]:
    """Return a row for each of a study's settings, in the paper's order."""
    settings: dict[tuple[str, str], dict[str, list[Result]]] = {}
    for (contender, setting, extra), runs in by_cell(results).items():
        if contender in METHODS and "algorithm." not in extra:
            settings.setdefault((setting, extra), {})[contender] = runs
    order = list(dict.fromkeys(cell.where for cell in cells(study)))
    placed = sorted(settings.items(), key=lambda one: order.index(one[0][0]))
    rows = [_row(study, scale, place, by_method, column) for place, by_method in placed]
    return [row for row in rows if row.seeds != "0"]


def _row(
    study: Study, scale: str, place: tuple[str, str], by_method: Mapping[str, Sequence[Result]], column: str
) -> Row:
    seeds = set.intersection(*({run.seed for run in runs} for runs in by_method.values()))
    shared = {method: [run for run in runs if run.seed in seeds] for method, runs in by_method.items()}
    (setting, extra), (some, *_) = place, by_method.values()
    rounds = "" if scale == "full" else f"{some[0].line['rounds']} rounds"
    where = "; ".join(filter(None, (f"{study.name.removeprefix('table-')}, {setting}", extra, rounds)))
    numbers = {method: float(np.mean([run.number(column) for run in runs])) for method, runs in shared.items() if runs}
    return Row(where, numbers, str(len(seeds)))
