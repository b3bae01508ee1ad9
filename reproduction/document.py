"""Generates `docs/reproduction/results.md` from the result files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from fedsat.errors import UsageError
from fedsat.experiment.folder import speaking_of, write_whole
from reproduction.overview import MEASURES, overview
from reproduction.results import Result, made_with, read_results, results_file
from reproduction.studies import STUDIES, Study
from reproduction.verdict import Entry, compare, coverage, missing, verdict_lines

HEAD = """# Results

This page is generated from `results/*.csv` by `python -m reproduction write`.

The tables show accuracy in per cent on the full test set, as mean ± standard deviation if there are several seeds.
*Paper* is the printed number, which is that of the best round. *Best* is ours in the best round, chosen on test data as
in the paper, and *difference* is our best minus the paper's. *Last ten* is the mean of the last ten rounds, which
selects nothing.
"""

GLANCE = (
    "Means of the last ten rounds over the seeds that all methods of a line have; a dash means that there is no run."
)

NOTES = "notes.md"
"""Hand-written notes in the folder of the results, which are placed at the top of the page."""


def write_document(folder: Path, path: Path) -> Path:
    """Write the page of all results in `folder`; smoke runs are left out."""
    kept = {
        (study.name, scale): results
        for study in STUDIES.values()
        for scale in ("full", "short")
        if (results := read_results(results_file(folder, study, scale)))
    }
    if not kept:
        raise UsageError(f"{folder} contains no results; create them with python -m reproduction run")
    parts = [section(STUDIES[name], scale, results) for (name, scale), results in kept.items()]
    if glance := _glance(kept):
        parts.insert(0, glance)
    notes = folder / NOTES
    if notes.is_file():
        with speaking_of(notes):
            parts.insert(0, notes.read_text(encoding="utf-8"))
    with speaking_of(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, "\n".join([HEAD, *parts]).encode())
    return path


def _glance(kept: Mapping[tuple[str, str], Sequence[Result]]) -> str:
    """Return the tables of all methods in all settings, one per measure; empty if no table has results."""
    tables = {measure: overview(kept, column) for measure, column in MEASURES.items()}
    lines = [line for measure, table in tables.items() if table for line in (f"### {measure}", "", *table, "")]
    return "\n".join(["## At a glance", "", GLANCE, "", *lines]) if lines else ""


def section(study: Study, scale: str, results: Sequence[Result]) -> str:
    """Return the section of one study at one scale: summary, tables, missing cells, and origin."""
    entries = compare(study, results)
    lines = [f"## {study.name}, {scale}: {study.title}", ""]
    lines += [f"- {line}" for line in verdict_lines(study, entries)]
    if scale == "short" and any(entry.printed is not None for entry in entries):
        lines += ["- fewer rounds than in the paper; its numbers are higher for that reason alone"]
    for where in dict.fromkeys(entry.where for entry in entries):
        lines += ["", f"### {where or study.title}", "", *_table([entry for entry in entries if entry.where == where])]
    absent = missing(study, results)
    lines += ["", f"{coverage(study, results)}."]
    if absent:
        places = "; ".join(dict.fromkeys(cell.where for cell in absent if cell.where))
        lines += ["", f"Missing: {len(absent)} cells" + (f" in {places}." if places else ".")]
    lines += ["", *_origin(results), ""]
    return "\n".join(lines)


def _table(entries: Sequence[Entry]) -> list[str]:
    lines = ["| | paper | best | difference | last ten | last | seeds |", "|---|---|---|---|---|---|---|"]
    for entry in entries:
        printed = "–" if entry.printed is None else f"{entry.printed:.2f}"
        difference = "–" if entry.difference is None else f"{entry.difference:+.2f}"
        values = [spread(entry.best), difference, spread(entry.last_ten), spread(entry.last)]
        name = f"{entry.contender} {entry.item.replace('_', ' ')}".strip()
        lines.append(f"| {name} | {printed} | {' | '.join(values)} | {len(entry.last_ten)} |")
    return lines


def spread(values: Sequence[float]) -> str:
    """Return the mean, and the standard deviation if there are several seeds; a dash if there are no values."""
    if not values:
        return "–"
    noise = f" ± {np.std(values, ddof=1):.2f}" if len(values) > 1 else ""
    return f"{np.mean(values):.2f}{noise}"


def _origin(results: Sequence[Result]) -> list[str]:
    facts = made_with(results)
    numbers = sorted(map(int, facts["seed"]))
    line = f"Seeds {', '.join(map(str, numbers))}; rounds {', '.join(facts['rounds'])}; "
    line += f"fedsat {', '.join(facts['fedsat'])}, torch {', '.join(facts['torch'])}, {'; '.join(facts['device'])}."
    return [line, *(f"\n    {command}" for command in facts["command"])]
