"""Comparison of our results with the paper's, cell by cell, and a summary."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from reproduction.coverage import missing
from reproduction.results import Key, Result, by_cell
from reproduction.statistics import spearman
from reproduction.studies import Study, cells


@dataclass(frozen=True)
class Entry:
    """One number of the paper and our results for it, in per cent."""

    contender: str
    where: str
    item: str
    """Which of a cell's numbers it is, for example `class 3`."""
    printed: float | None
    seeds: list[int]
    """The seeds of our runs, in the order of the lists below."""
    last_ten: list[float]
    """Ours, the mean of the last ten rounds."""
    last: list[float]
    best: list[float]
    """Ours in the best round, chosen on test data as the paper's numbers are; empty for clients and classes."""

    @property
    def ours(self) -> list[float]:
        """The values to compare with the printed number: of the best round, if available."""
        return self.best or self.last_ten

    def over(self, seeds: Collection[int]) -> Entry:
        """Return the entry restricted to these seeds."""
        kept = [place for place, seed in enumerate(self.seeds) if seed in seeds]

        def of(values: Sequence[float]) -> list[float]:
            return [values[place] for place in kept] if values else []

        own = [self.seeds[place] for place in kept]
        return replace(self, seeds=own, last_ten=of(self.last_ten), last=of(self.last), best=of(self.best))

    @property
    def difference(self) -> float | None:
        """Ours minus the paper's; none without a run or a printed number."""
        return None if self.printed is None or not self.ours else float(np.mean(self.ours)) - self.printed


def compare(study: Study, results: Sequence[Result], unrun: bool = False) -> list[Entry]:
    """Return every number of the study that has results, in the paper's order, then methods not in the paper.

    With `unrun`, also the paper's numbers for cells that have no run yet.
    """
    found = by_cell(results)
    if unrun:
        found |= {(cell.contender, cell.where, ""): [] for cell in missing(study, results) if cell.printed}
    printed = {(cell.contender, cell.where): cell.printed for cell in cells(study)}
    order = {name: place for place, name in enumerate(printed)}
    keys = sorted(found, key=lambda key: order.get(key[:2], len(order)))
    return [entry for key in keys for entry in _entries(study, key, printed.get(key[:2], {}), found[key])]


def _entries(study: Study, key: Key, printed: Mapping[str, float], results: Sequence[Result]) -> list[Entry]:
    contender, setting, extra = key
    where = "; ".join(filter(None, (setting, extra)))
    seeds = [result.seed for result in results]

    def entry(item: str, name: str, last_ten: list[float], *others: list[float]) -> Entry:
        return Entry(contender, where, item, printed.get(name), seeds, last_ten, *(others or ([], [])))

    if "min_accuracy" in study.measures:
        columns = {"lowest": "lowest_client_last_ten", "highest": "highest_client_last_ten"}
        names = dict(zip(columns, study.measures, strict=True))
        return [entry(item, names[item], [r.number(column) for r in results]) for item, column in columns.items()]
    classes = [item for item in printed if item.startswith("class ")]
    if classes:
        return [entry(item, item, [r.recall[int(item.split()[1])] for r in results]) for item in classes]
    kinds = ("accuracy_last_ten", "accuracy_last", "accuracy_best")
    return [entry("", "accuracy", *([r.number(kind) for r in results] for kind in kinds))]


@dataclass(frozen=True)
class Verdict:
    """A summary of the paper's numbers, or of ours."""

    settings: int
    """Settings with the champion and at least one other contender."""
    leads: int
    """How many of these the champion leads."""
    margin: float
    """Mean of the champion's lead over the best of the others, in points."""
    correlation: float | None
    """Mean rank correlation (Spearman) of the contenders with the paper's ranking; None if nothing is printed."""


def judge(study: Study, entries: Sequence[Entry], value: Callable[[Entry], float | None]) -> Verdict | None:
    """Return the summary of the numbers that `value` gets from entries; None if no setting can be compared.

    Only the paper's contenders count, so that both summaries are comparable, and only seeds that all contenders have.
    """
    leads, margins, correlations = 0, [], []
    contenders = {cell.contender for cell in cells(study)}
    for group in _settings([entry for entry in entries if entry.contender in contenders]).values():
        numbers = {entry.contender: value(entry) for entry in group}
        known = {name: number for name, number in numbers.items() if number is not None}
        if study.champion not in known or len(known) < 2:
            continue
        others = [number for name, number in known.items() if name != study.champion]
        margins.append(known[study.champion] - max(others))
        leads += margins[-1] > 0
        pairs = [(known[entry.contender], entry.printed) for entry in group if entry.contender in known]
        ranked = [(ours, printed) for ours, printed in pairs if printed is not None]
        correlation = spearman(ranked)
        correlations += [correlation] if correlation is not None else []
    if not margins:
        return None
    return Verdict(len(margins), leads, float(np.mean(margins)), float(np.mean(correlations)) if correlations else None)


def _settings(entries: Sequence[Entry]) -> dict[tuple[str, str], list[Entry]]:
    """Group entries that are compared: same setting, item and seeds. The best client's accuracy is not compared."""
    groups: dict[tuple[str, str], list[Entry]] = {}
    for entry in entries:
        if entry.item != "highest" and entry.seeds:
            groups.setdefault((entry.where, entry.item), []).append(entry)
    shared = {key: set.intersection(*(set(entry.seeds) for entry in group)) for key, group in groups.items()}
    return {key: [entry.over(shared[key]) for entry in group] for key, group in groups.items() if shared[key]}


def verdict_lines(study: Study, entries: Sequence[Entry]) -> list[str]:
    """Return the summaries of our last ten rounds and of our best rounds, next to that of the paper's numbers."""
    paper = judge(study, entries, lambda entry: entry.printed)
    ways: dict[str, Callable[[Entry], float | None]] = {
        "mean of the last ten rounds": lambda entry: float(np.mean(entry.last_ten)),
        "best round, as in the paper": lambda entry: float(np.mean(entry.best)) if entry.best else None,
    }
    lines = []
    for name, way in ways.items():
        ours = judge(study, entries, way)
        if ours is None:
            continue
        theirs = ("", "") if paper is None else (f" (paper {paper.leads})", f" (paper {paper.margin:+.2f})")
        text = f"{name}: {_champion(study)} leads in {ours.leads}{theirs[0]} of {ours.settings}, "
        text += f"by {ours.margin:+.2f} points{theirs[1]} on average over the second best"
        if ours.correlation is not None:
            text += f"; rank correlation with the paper {ours.correlation:+.2f}"
        lines.append(text)
    return lines


def _champion(study: Study) -> str:
    return f"{study.contender}={study.champion}" if study.contender == "workers" else study.champion
