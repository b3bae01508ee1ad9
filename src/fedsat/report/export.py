"""The table of a comparison as a file: CSV for further computation, LaTeX for papers."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedsat.errors import UsageError
from fedsat.experiment.folder import speaking_of, write_whole
from fedsat.report.comparison import BySeed, MethodResult, comparison, mean, method_results, std
from fedsat.report.groups import Group, common_settings

ESCAPES = {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
}  # fmt: skip
SYMBOLS = {"±": r" $\pm$ ", "≈": r"$\approx$", "–": "--"}


def check_table(path: Path) -> None:
    """Raise an error unless the name of a file for a table ends in .csv or .tex."""
    if path.suffix.lower() not in WRITERS:
        raise UsageError(f"cannot write a table to {path}: give a file that ends in {' or '.join(WRITERS)}")


def write_table(groups: Sequence[Group], path: Path, target: float | None = None) -> Path:
    """Write the table to `path`, in the format that its suffix names, and return the path."""
    check_table(path)
    with speaking_of(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, WRITERS[path.suffix.lower()](groups, target).encode())
    return path


def csv_table(groups: Sequence[Group], target: float | None = None) -> str:
    """The table as CSV, one line for each method. Accuracies and recalls are shares between 0 and 1."""
    rows = [_numbers(result, target) for result in method_results(groups, target)]
    file = io.StringIO()
    writer = csv.DictWriter(file, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()


def _numbers(result: MethodResult, target: float | None) -> dict[str, Any]:
    row: dict[str, Any] = {"label": result.label, "method": result.group.first.method, "seeds": len(result.group.runs)}
    values: Mapping[str, BySeed] = {**result.qualities, "last_accuracy": result.last, "best_accuracy": result.best}
    for name, by_seed in values.items():
        row |= {f"{name}_mean": _plain(mean(by_seed) if by_seed else None), f"{name}_std": _plain(std(by_seed))}
    if target is not None:
        reached = [number for number in result.reached if number is not None]
        everywhere = len(reached) == len(result.reached)
        row |= {"target": _plain(target), "seeds_that_reach_target": len(reached)}
        row["rounds_to_target_mean"] = _plain(float(np.mean(reached))) if everywhere else ""
    return {**row, "seconds": _plain(result.seconds), "megabytes": _plain(result.megabytes)}


def _plain(value: float | None) -> str:
    """A number with as many digits as anyone needs; empty if there is none."""
    return "" if value is None else f"{value:.6g}"


def latex_table(groups: Sequence[Group], target: float | None = None) -> str:
    r"""The table as a LaTeX `tabular` in the style of booktabs, with the best values in bold."""
    shown = comparison(groups, target)
    rows = [" & ".join(_latex_cell(text, mark) for text, mark in row) for row in shown.rows]
    lines = [
        rf"% {' '.join(common_settings(groups).split())}",
        r"% needs \usepackage{booktabs}",
        rf"\begin{{tabular}}{{l{'r' * (len(shown.headings) - 1)}}}",
        r"\toprule",
        rf"{' & '.join(_latex(heading) for heading in shown.headings)} \\",
        r"\midrule",
        *(rf"{row} \\" for row in rows),
        r"\bottomrule",
        r"\end{tabular}",
    ]
    return "\n".join(lines) + "\n"


def _latex_cell(text: str, mark: str) -> str:
    if mark == "best":
        return rf"\textbf{{{_latex(text)}}}"
    return _latex(f"{text} ≈" if mark == "tie" else text)


def _latex(text: str) -> str:
    """Text with LaTeX's special characters escaped."""
    return "".join({**ESCAPES, **SYMBOLS}.get(sign, sign) for sign in text)


WRITERS = {".csv": csv_table, ".tex": latex_table}
"""The formats of a table, by the suffix of its file."""
