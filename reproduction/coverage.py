"""Which of the paper's cells have results, and which have not been run yet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from reproduction.results import Kept, Result
from reproduction.studies import METHODS, STUDIES, Cell, Study, cells

TABLES = ("table-ls", "table-lsmc", "table-lqsmc")
"""The tables that compare all methods."""


def missing(study: Study, results: Sequence[Result]) -> list[Cell]:
    """Return the cells of the study without results."""
    found = {result.key[:2] for result in results}
    return [cell for cell in cells(study) if (cell.contender, cell.where) not in found]


def coverage(study: Study, results: Sequence[Result]) -> str:
    """Describe how many of a study's cells have results."""
    as_printed = [result for result in results if not result.line["extra"]]
    total, without = len(cells(study)), len(missing(study, results))
    changed = len(missing(study, as_printed)) - without
    text = f"{total - without} of {total} cells have results"
    return text + (f", {changed} of them with changed settings" if changed else "")


def coverage_of_tables(kept: Kept) -> str:
    """Describe how many cells of the three tables have results."""
    total = sum(len(cells(STUDIES[name])) for name in TABLES)
    without = sum(len(cells) for cells in missing_in_tables(kept).values())
    printed = {key: [r for r in results if not r.line["extra"]] for key, results in kept.items() if key[1] == "full"}
    exact = total - sum(len(cells) for cells in missing_in_tables(printed).values())
    return (
        f"{total - without} of the {total} cells of {', '.join(TABLES)} have results: {exact} as printed, "
        f"{total - without - exact} with fewer rounds or changed settings"
    )


def missing_in_tables(kept: Kept) -> dict[str, list[Cell]]:
    """Return the cells of each table that have no result at any scale."""
    return {
        name: missing(STUDIES[name], [r for scale in ("full", "short") for r in kept.get((name, scale), ())])
        for name in TABLES
    }


def unrun_table(found: Sequence[Cell]) -> list[str]:
    """Return a table of the paper's numbers for cells without results: one line for each setting."""
    printed: dict[str, Mapping[str, float]] = {}
    for cell in found:
        printed[cell.where] = {**printed.get(cell.where, {}), cell.contender: cell.printed["accuracy"]}
    lines = [f"| | {' | '.join(METHODS)} |", "|---|" + "---:|" * len(METHODS)]
    for where, numbers in printed.items():
        words = [f"{numbers[method]:.2f}" if method in numbers else "" for method in METHODS]
        lines.append(f"| {where} | {' | '.join(words)} |")
    return lines
