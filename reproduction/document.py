"""Generates `docs/reproduction/results.md` from the result files."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from fedsat.errors import UsageError
from fedsat.experiment.folder import speaking_of, write_whole
from reproduction.coverage import coverage, coverage_of_tables, missing, missing_in_tables, unrun_table
from reproduction.diagram import write_diagrams
from reproduction.leads import (
    contests,
    dataset_table,
    difference_table,
    fields,
    lead_lines,
    lead_table,
    rank_lines,
    rank_methods,
    rank_table,
)
from reproduction.overview import MEASURES, Setting, overview, read_settings
from reproduction.results import Kept, Result, made_with, read_all
from reproduction.studies import STUDIES, Study
from reproduction.tuning import SETTINGS, TRIALS, read_rows, tuning_table
from reproduction.verdict import Entry, compare, verdict_lines

HEAD = """# Results

This page is generated from `results/*.csv` by `python -m reproduction write`.

The tables show accuracy in per cent on the full test set, as mean ± standard deviation if there are several seeds.
*Paper* is the printed number, which is that of the best round. *Best* is our best round, chosen on test data as in the
paper, and *difference* is our best minus the paper's. *Last ten* is the mean of the last ten rounds, which involves no
choice.
"""

GLANCE = """## At a glance

FedSat with its current defaults is compared with the best of the other methods, in every setting in which at least two
others were run. The numbers are means of the last ten rounds, over the seeds that all methods of a line share. The
margin is FedSat minus the best other; losses are in bold; n is the number of classes per client. Runs on CIFAR have
`precision=bf16`. Runs with other options, or with LSMC clients of uneven sizes, are further down.
"""

RANKS = """### Ranks

A method's rank is its mean over the settings in which all methods of a line were run; rank 1 is the best. The Friedman
test asks whether the methods differ at all (p). Two methods differ at the 5 % level if their mean ranks are further
apart than the critical difference of the Nemenyi test.
"""

DIFFERENCES = """### Differences

FedSat minus each other method, in points: the mean over pairs of runs with the same setting and seed, with the 95 %
bootstrap interval in brackets. Pairs of the same setting depend on each other, so the bootstrap draws whole settings
(10,000 samples, fixed seed). With few settings, the interval is coarse.
"""

ALL = """## All methods

Means of the last ten rounds over the seeds that all methods of a line share; a dash means that there is no run.
"""

TUNING = """Each method tries values of its own option, with a seed that no table uses. It tries three values,
judged on held-out training data; in older trials, it tries its authors' grid, judged as the heading says. The best
value is used in all tables of the dataset. Methods without trials on a dataset keep their defaults there."""

NOTES = "notes.md"
"""Hand-written notes in the folder of the results, which are placed at the top of the page."""


def write_document(folder: Path, path: Path, figure: Path) -> Path:
    """Write the page of all results in `folder`, and its figure; smoke runs are left out."""
    kept = read_all(folder)
    if not kept:
        raise UsageError(f"{folder} contains no results; create them with python -m reproduction run")
    settings = read_settings(kept)
    parts = [HEAD, *_glance(contests(settings), path, figure)]
    notes = folder / NOTES
    if notes.is_file():
        with speaking_of(notes):
            parts.append(notes.read_text(encoding="utf-8"))
    tables = {measure: overview(settings, column) for measure, column in MEASURES.items()}
    lines = [line for measure, table in tables.items() if table for line in (f"### {measure}", "", *table, "")]
    parts += ["\n".join([ALL, *lines])] if lines else []
    parts.append(_unrun(kept))
    parts += [section(STUDIES[name], scale, results) for (name, scale), results in kept.items()]
    parts.append(_tuning(read_rows(folder / TRIALS)))
    with speaking_of(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, "\n".join(parts).encode())
    return path


def _glance(found: Sequence[Setting], path: Path, figure: Path) -> list[str]:
    """Return the sections on who leads, and by how much; nothing if FedSat was not run."""
    if not found:
        return []
    parts = [GLANCE, *lead_table(found), "", *lead_lines(found), ""]
    columns = [(methods, where, rank_methods(methods, where)) for methods, where in fields(found)]
    if columns:
        write_diagrams([rankings for _, _, rankings in columns], figure)
        link = Path(os.path.relpath(figure, path.parent)).as_posix()
        ranked = [ranking for _, _, rankings in columns for ranking in rankings]
        parts += [RANKS, *rank_table(ranked), "", *rank_lines(ranked)]
        parts += [f"- Settings with {len(methods)} methods: {_places(where)}." for methods, where, _ in columns]
        parts += ["", f"![Critical-difference diagrams of the mean ranks]({link})", ""]
        parts += ["Bars connect methods whose mean ranks do not differ by more than the critical difference.", ""]
    return [*parts, DIFFERENCES, *difference_table(found), "", "By dataset:", "", *dataset_table(found), ""]


def _places(where: Sequence[Setting]) -> str:
    return "; ".join(setting.brief for setting in where)


def _unrun(kept: Kept) -> str:
    """Return the section on how much of the paper's tables was run, with the paper's numbers for the rest."""
    lines = ["## Not run yet", "", f"{coverage_of_tables(kept)}.", ""]
    for name, absent in missing_in_tables(kept).items():
        if absent:
            lines += [f"The paper's numbers in {name} for cells without a run:", "", *unrun_table(absent), ""]
    return "\n".join(lines)


def _tuning(rows: Sequence[Mapping[str, str]]) -> str:
    """Return the section on the tuning: the trials of each dataset, and where they come from."""
    lines = ["## Tuning", "", TUNING, ""] if rows else []
    for dataset, judged_on in dict.fromkeys((row["dataset"], row["judged_on"]) for row in rows):
        mine = [row for row in rows if (row["dataset"], row["judged_on"]) == (dataset, judged_on)]
        where = ", ".join(f"{key}={value}" for key, value in SETTINGS[dataset].items())
        lines += [f"### {dataset}: {where}, judged on {judged_on}", "", *tuning_table(mine), ""]
        facts = [sorted({row[key] for row in mine}) for key in ("fedsat", "torch", "device")]
        lines += [f"fedsat {', '.join(facts[0])}, torch {', '.join(facts[1])}, {'; '.join(facts[2])}.", ""]
        lines += [f"    {command}\n" for command in sorted({row["command"] for row in mine} - {""})]
    return "\n".join(lines)


def section(study: Study, scale: str, results: Sequence[Result]) -> str:
    """Return the section of one study at one scale: summary, tables, missing cells, and origin."""
    entries = compare(study, results)
    lines = [f"## {study.name}, {scale}: {study.title}", ""]
    lines += [f"- {line}" for line in verdict_lines(study, entries)]
    if scale == "short" and any(entry.printed is not None for entry in entries):
        lines += ["- fewer rounds than in the paper, whose numbers are higher for that reason alone"]
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
