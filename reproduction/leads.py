"""FedSat against the other methods: who leads, by how much, and whether chance could explain it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from reproduction.overview import MEASURES, Setting
from reproduction.statistics import NEMENYI, bootstrap_interval, critical_difference, friedman, ranks
from reproduction.studies import METHODS

NAMES = dict(zip(MEASURES, ("accuracy", "worst class", "worst client"), strict=True))
"""Short names of the measures."""
CHAMPION = "fedsat"
OTHERS = [method for method in METHODS if method != CHAMPION]
FEWEST = 5
"""Ranks among fewer methods than this say little, so methods are not left out to add settings."""


def contests(settings: Sequence[Setting]) -> list[Setting]:
    """Return the settings under the current protocol with FedSat and at least two others over common seeds."""
    return [s for s in settings if s.current and CHAMPION in s.runs and len(s.runs) > 2 and s.seeds(s.runs)]


def lead_table(found: Sequence[Setting]) -> list[str]:
    """Return FedSat, the best of the others, and the margin between them, for each measure; losses in bold."""
    names = [f"{name} | best other | margin" for name in NAMES.values()]
    lines = [f"| | {' | '.join(names)} | methods | rounds | seeds |"]
    lines += ["|---|" + "---:|---|---:|" * len(NAMES) + "---:|" * 3]
    for setting in found:
        words = [word for column in MEASURES.values() for word in _lead(setting, column)]
        counts = f"{len(setting.runs)} | {setting.rounds} | {len(setting.seeds(setting.runs))}"
        lines.append(f"| {setting.brief} | {' | '.join(words)} | {counts} |")
    return lines


def _lead(setting: Setting, column: str) -> list[str]:
    own, best, margin = lead(setting, column)
    words = f"{margin:+.2f}"
    return [f"{own:.2f}", f"{best} {own - margin:.2f}", words if margin > 0 else f"**{words}**"]


def lead(setting: Setting, column: str) -> tuple[float, str, float]:
    """Return FedSat's mean, the best of the others, and FedSat's lead over it."""
    means = setting.means(column, list(setting.runs))
    own = means.pop(CHAMPION)
    best = max(means, key=means.__getitem__)
    return own, best, own - means[best]


def lead_lines(found: Sequence[Setting]) -> list[str]:
    """Describe, for each measure, in how many settings FedSat leads, and where it does not."""
    lines = []
    for name, column in MEASURES.items():
        leads = {setting.brief: lead(setting, column) for setting in found}
        lost = [f"{where} ({best} is ahead by {-by:.2f})" for where, (_, best, by) in leads.items() if by <= 0]
        text = f"- {name}: {CHAMPION} leads in {len(leads) - len(lost)} of {len(leads)} settings"
        lines.append(text + (f"; not in {'; '.join(lost)}." if lost else "."))
    return lines


@dataclass(frozen=True)
class Ranking:
    """The mean ranks of methods over settings in which all of them were run; rank 1 is the best."""

    measure: str
    settings: int
    ranks: dict[str, float]
    p: float
    """Of the Friedman test."""
    distance: float
    """The critical difference of two mean ranks."""

    @property
    def behind(self) -> list[str]:
        """The methods whose mean rank is behind FedSat's by more than the critical difference."""
        return [method for method, rank in self.ranks.items() if rank - self.ranks[CHAMPION] > self.distance]


def fields(found: Sequence[Setting]) -> list[tuple[list[str], list[Setting]]]:
    """Return the methods to rank and the settings in which all were run: the most methods, and the most settings."""
    sets = {frozenset(setting.runs) for setting in found if FEWEST <= len(setting.runs) <= max(NEMENYI)}
    places = {methods: [setting for setting in found if methods <= set(setting.runs)] for methods in sets}
    places = {methods: where for methods, where in places.items() if len(where) > 1}
    if not places:
        return []
    widest = max(places, key=lambda methods: (len(methods), len(places[methods])))
    longest = max(places, key=lambda methods: (len(places[methods]), len(methods)))
    return [([m for m in METHODS if m in methods], places[methods]) for methods in dict.fromkeys([widest, longest])]


def rank_methods(methods: Sequence[str], where: Sequence[Setting]) -> list[Ranking]:
    """Rank the methods in each setting by each measure."""
    found = []
    for name, column in MEASURES.items():
        means = np.array([list(setting.means(column, methods).values()) for setting in where])
        ranked = ranks(-means)  # the highest is the best
        mean = dict(zip(methods, ranked.mean(axis=0).tolist(), strict=True))
        distance = critical_difference(len(where), len(methods))
        found.append(Ranking(name, len(where), mean, friedman(ranked), distance))
    return found


def rank_table(rankings: Sequence[Ranking]) -> list[str]:
    """Return the table of the mean ranks, with the p-values and critical differences."""
    lines = [f"| | {' | '.join([*METHODS, 'p', 'critical difference'])} |", "|---|" + "---:|" * (len(METHODS) + 2)]
    for ranking in rankings:
        words = [f"{ranking.ranks[method]:.2f}" if method in ranking.ranks else "–" for method in METHODS]
        tests = [f"{ranking.p:.1g}", f"{ranking.distance:.2f}"]
        lines.append(f"| {NAMES[ranking.measure]}, {ranking.settings} settings | {' | '.join([*words, *tests])} |")
    return lines


def rank_lines(rankings: Sequence[Ranking]) -> list[str]:
    """Describe, for each measure, which methods FedSat is ahead of by more than the critical difference."""
    return [
        f"- {ranking.measure}, {len(ranking.ranks)} methods: {CHAMPION} is ahead of "
        f"{', '.join(ranking.behind) or 'none'} by more than the critical difference."
        for ranking in rankings
    ]


def difference_table(found: Sequence[Setting]) -> list[str]:
    """Return FedSat minus each other method over pairs of runs with the same setting and seed, with 95 % intervals."""
    lines = [f"| {CHAMPION} minus | settings | pairs | {' | '.join(NAMES.values())} |", "|---|" + "---:|" * 5]
    for other in OTHERS:
        where = [s for s in found if other in s.runs and s.differences("accuracy_last_ten", CHAMPION, other)]
        if where:
            by_measure = [[s.differences(column, CHAMPION, other) for s in where] for column in MEASURES.values()]
            words = [_mean_and_interval(groups) for groups in by_measure]
            pairs = sum(map(len, by_measure[0]))
            lines.append(f"| {other} | {len(where)} | {pairs} | {' | '.join(words)} |")
    return lines


def _mean_and_interval(groups: Sequence[Sequence[float]]) -> str:
    low, high = bootstrap_interval(groups)
    mean = np.mean([value for group in groups for value in group])
    return f"{mean:+.2f} [{low:+.2f}, {high:+.2f}]"


def dataset_table(found: Sequence[Setting]) -> list[str]:
    """Return the mean differences on each dataset."""
    datasets = list(dict.fromkeys(setting.dataset for setting in found))
    titles = [f"{dataset}: {name}" for dataset in datasets for name in NAMES.values()]
    lines = [f"| {CHAMPION} minus | {' | '.join(titles)} |", "|---|" + "---:|" * len(titles)]
    for other in OTHERS:
        words = []
        for dataset in datasets:
            where = [s for s in found if s.dataset == dataset and other in s.runs]
            for column in MEASURES.values():
                values = [value for s in where for value in s.differences(column, CHAMPION, other)]
                words.append(f"{np.mean(values):+.2f}" if values else "–")
        lines.append(f"| {other} | {' | '.join(words)} |")
    return lines
