"""An overview of all methods in all settings: one line for each setting of the paper's tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from reproduction.coverage import TABLES
from reproduction.results import Kept, Result, by_cell
from reproduction.studies import METHODS, STUDIES, Study, cells

MEASURES = {
    "Accuracy": "accuracy_last_ten",
    "Worst-class recall": "worst_class_last_ten",
    "Worst-client accuracy": "lowest_client_last_ten",
}
"""The measures of the overview, and their columns in the results."""


BRIEF = {"classes_per_client=": "n=", "min_classes=": "n≥", "partition.sizes=skewed": "uneven sizes"}
"""Short forms of parts of a setting, for narrow tables."""


def brief(setting: str) -> str:
    """Shorten a setting; n is the number of classes per client."""
    for long, short in BRIEF.items():
        setting = setting.replace(long, short)
    return setting


@dataclass(frozen=True)
class Setting:
    """A setting of a table, and the runs of the methods in it by seed."""

    where: str
    scale: str
    extra: str
    runs: Mapping[str, Mapping[int, Result]]

    @property
    def brief(self) -> str:
        """The setting in short, without rounds and precision."""
        return brief(self.where.partition(";")[0])

    @property
    def rounds(self) -> str:
        """The number of rounds; the methods share it."""
        return next(result.line["rounds"] for by_seed in self.runs.values() for result in by_seed.values())

    @property
    def dataset(self) -> str:
        """The name of the dataset."""
        return self.where.split(", ")[1]

    @property
    def current(self) -> bool:
        """Whether the protocol is the current one; precision is not part of it, because all methods share it."""
        return all(change.startswith("precision=") for change in self.extra.split(", ") if change)

    def seeds(self, methods: Iterable[str]) -> list[int]:
        """Return the seeds that all these methods have."""
        return sorted(set.intersection(*(set(self.runs[method]) for method in methods)))

    def means(self, column: str, methods: Sequence[str]) -> dict[str, float]:
        """Return the methods' means over the seeds that all of them have."""
        seeds = self.seeds(methods)
        return {m: float(np.mean([self.runs[m][seed].number(column) for seed in seeds])) for m in methods}

    def differences(self, column: str, first: str, second: str) -> list[float]:
        """Return the first method minus the second, seed by seed."""
        one, two = self.runs[first], self.runs[second]
        return [one[seed].number(column) - two[seed].number(column) for seed in self.seeds([first, second])]


def read_settings(kept: Kept) -> list[Setting]:
    """Return the settings of all tables in the paper's order, full runs first.

    Runs of methods whose options were changed are left out. Full and short runs are separate: they are not comparable.
    """
    return [
        setting
        for scale in ("full", "short")
        for name in TABLES
        for setting in _settings(STUDIES[name], scale, kept.get((name, scale), ()))
    ]


def _settings(study: Study, scale: str, results: Sequence[Result]) -> list[Setting]:
    found: dict[tuple[str, str], dict[str, dict[int, Result]]] = {}
    for (contender, setting, extra), runs in by_cell(results).items():
        if contender in METHODS and "algorithm." not in extra:
            found.setdefault((setting, extra), {})[contender] = {run.seed: run for run in runs}
    order = list(dict.fromkeys(cell.where for cell in cells(study)))
    placed = sorted(found.items(), key=lambda one: order.index(one[0][0]))
    return [_setting(study, scale, place, runs) for place, runs in placed]


def _setting(study: Study, scale: str, place: tuple[str, str], runs: Mapping[str, Mapping[int, Result]]) -> Setting:
    setting, extra = place
    found = Setting(f"{study.name.removeprefix('table-')}, {setting}", scale, extra, runs)
    rounds = "" if scale == "full" else f"{found.rounds} rounds"
    return replace(found, where="; ".join(filter(None, (found.where, extra, rounds))))


def overview(settings: Sequence[Setting], column: str) -> list[str]:
    """Return a table with a line for each setting in which the methods share a seed, and the means at each scale."""
    lines = []
    for scale in ("full", "short"):
        rows = [
            (setting.where, setting.means(column, list(setting.runs)), str(len(setting.seeds(setting.runs))))
            for setting in settings
            if setting.scale == scale and setting.seeds(setting.runs)
        ]
        whole = [numbers for _, numbers, _ in rows if len(numbers) == len(METHODS)]
        if len(whole) > 1:
            means = {method: float(np.mean([numbers[method] for numbers in whole])) for method in METHODS}
            rows.append((f"mean of the {len(whole)} settings with all methods, {scale}", means, ""))
        lines += [_line(*row) for row in rows]
    heading = [f"| | {' | '.join(METHODS)} | seeds |", "|---|" + "---:|" * (len(METHODS) + 1)]
    return [*heading, *lines] if lines else []


def _line(where: str, numbers: Mapping[str, float], seeds: str) -> str:
    """Return a line of the table, with the best value in bold."""
    best = f"{max(numbers.values()):.2f}"
    words = [f"{numbers[method]:.2f}" if method in numbers else "–" for method in METHODS]
    return f"| {' | '.join([where, *(f'**{word}**' if word == best else word for word in words), seeds])} |"
