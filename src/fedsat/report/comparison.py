"""The comparison of methods over seeds: means, standard deviations, and which differences may be noise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedsat.experiment.config import DATA
from fedsat.experiment.store import completed
from fedsat.experiment.summary import mean_over
from fedsat.metrics import METRICS, Metric, compared, rounds_to_target
from fedsat.report.groups import Group
from fedsat.report.terms import explain_terms

STUDENT = (12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
"""97.5 % quantiles of Student's t distribution with 1 to 10 degrees of freedom."""
STUDENT_BEYOND = 2.2

BySeed = Mapping[int, float]


@dataclass(frozen=True)
class MethodResult:
    """The results of one model of one group, for each seed."""

    label: str
    group: Group
    qualities: dict[str, BySeed]
    """Means of the last ten rounds, by metric; empty for a metric that the runs do not have."""
    last: BySeed
    """Accuracy of the last round."""
    best: BySeed
    """Accuracy of the best round."""
    reached: list[int | None]
    """Rounds to the target for each seed, None if it was not reached; empty if there is no target."""
    seconds: float
    megabytes: float
    unfinished: bool
    """Whether a run has fewer rounds than its configuration asks for."""
    epsilon: float | None = None
    """The largest ε that a run has spent; None without differential privacy."""


def compared_metrics(groups: Sequence[Group]) -> list[Metric]:
    """The metrics in tables and charts: those that every run has, and the users' own."""
    imbalanced = any(run.imbalanced for group in groups for run in group.runs)
    found = {each.name: each for each in compared(imbalanced)}
    for group in groups:
        for run in group.runs:
            found |= {each.name: each for each in run.own_metrics if each.name not in found}
    return list(found.values())


def method_results(groups: Sequence[Group], target: float | None = None) -> list[MethodResult]:
    """One result for each group, and one for every additional model that its method evaluates."""
    found, metrics = [], compared_metrics(groups)
    for group in groups:
        found.append(_method_result(group.label, group, metrics, None, target))
        for model in group.first.summary.get("models", {}):
            found.append(_method_result(f"{group.label}, {model}", group, metrics, model, target))
    return found


def _method_result(
    label: str, group: Group, metrics: Sequence[Metric], model: str | None, target: float | None
) -> MethodResult:
    by_seed = {run.seed: _of_model(run.summary, model) for run in group.runs}
    reached = []
    for run in group.runs if target is not None else ():
        values = [record.metrics if model is None else record.models[model] for record in run.evaluated]
        accuracy, rounds = [float(one["accuracy"]) for one in values], [record.round for record in run.evaluated]
        reached.append(rounds_to_target(rounds, accuracy, target or 0.0))
    summaries = [run.summary for run in group.runs]
    return MethodResult(
        label=label,
        group=group,
        qualities={
            each.name: {seed: s["last_ten"][each.name] for seed, s in by_seed.items() if each.name in s["last_ten"]}
            for each in metrics
        },
        last={seed: summary["accuracy"] for seed, summary in by_seed.items()},
        best={seed: summary["best"]["accuracy"] for seed, summary in by_seed.items()},
        reached=reached,
        seconds=float(np.mean([summary["seconds"] for summary in summaries])),
        megabytes=float(np.mean([summary["bytes_down"] + summary["bytes_up"] for summary in summaries])) / 1e6,
        unfinished=any(run.ended_early for run in group.runs),
        epsilon=max((summary["epsilon"] for summary in summaries if "epsilon" in summary), default=None),
    )


def _of_model(summary: Mapping[str, Any], model: str | None) -> Mapping[str, Any]:
    """The summary of the global model, or that of another model that the method evaluates."""
    part: Mapping[str, Any] = summary if model is None else summary["models"][model]
    return part


def mean(values: BySeed) -> float:
    """The mean over seeds."""
    return float(np.mean(list(values.values())))


def std(values: BySeed) -> float | None:
    """The standard deviation over seeds (with n − 1); None if there is only one."""
    return float(np.std(list(values.values()), ddof=1)) if len(values) > 1 else None


def tied(best: BySeed, other: BySeed) -> bool:
    """Whether the difference to the best may be noise.

    For each seed, methods share federation and client sampling, so differences are taken per seed. They may be noise if
    the 95 % confidence interval of their mean (Student's t) includes zero. With one common seed there are no ties.
    """
    seeds = sorted(best.keys() & other.keys())
    if len(seeds) < 2:
        return False
    differences = np.array([best[seed] - other[seed] for seed in seeds])
    freedom = len(seeds) - 1
    quantile = STUDENT[freedom - 1] if freedom <= len(STUDENT) else STUDENT_BEYOND
    return bool(abs(differences.mean()) <= quantile * differences.std(ddof=1) / np.sqrt(len(seeds)))


def marks(columns: Sequence[BySeed], *, higher_is_better: bool = True) -> list[str]:
    """Mark each entry of a column as `best`, `tie` (with the best) or nothing, over the seeds that all entries have.

    Nothing is marked if there is only one entry, or no common seed. Empty entries are ignored.
    """
    entries = [values for values in columns if values]
    seeds = set.intersection(*(set(values) for values in entries)) if entries else set()
    if len(entries) < 2 or not seeds:
        return [""] * len(columns)
    shared = [{seed: values[seed] for seed in seeds} if values else {} for values in columns]
    top = (max if higher_is_better else min)(mean(values) for values in shared if values)
    leader = next(values for values in shared if values and mean(values) == top)
    return [
        "" if not values else "best" if mean(values) == top else "tie" if tied(leader, values) else ""
        for values in shared
    ]


def format_value(values: BySeed, metric: Metric = METRICS["accuracy"]) -> str:
    """A metric over seeds: mean±std, one number if there is one seed, a dash if there is none."""
    if not values:
        return "–"
    noise = std(values)
    return metric.written(mean(values)) + (f"±{metric.written(noise)}" if noise is not None else "")


def format_rounds(reached: Sequence[int | None]) -> str:
    """Rounds to the target: the mean over seeds, or how many seeds reached it, or a dash if none did."""
    there = [number for number in reached if number is not None]
    if len(there) == len(reached) > 0:
        return f"{np.mean(there):.0f}"
    return f"{len(there)} of {len(reached)}" if there else "–"


def fewest_rounds(all_reached: Sequence[Sequence[int | None]]) -> float | None:
    """The fewest rounds to the target among the methods that reach it with every seed."""
    means = [float(np.mean([n or 0 for n in reached])) for reached in all_reached if reached and None not in reached]
    return min(means, default=None)


@dataclass(frozen=True)
class ComparisonTable:
    """The table of a comparison as text, to be shown on a terminal, on a page or in a paper."""

    headings: list[str]
    rows: list[list[tuple[str, str]]]
    """The text of each cell, and its mark: `best`, `tie` or nothing."""
    legend: str
    """What the numbers and marks mean."""
    terms: list[str]
    """Explanations of the terms that occur, one line each."""


def comparison(groups: Sequence[Group], target: float | None = None) -> ComparisonTable:
    """Methods side by side over seeds."""
    found = method_results(groups, target)
    comparable = len({_federation(group) for group in groups}) == 1
    metrics = compared_metrics(groups)
    columns = [[result.qualities[each.name] for result in found] for each in metrics]
    marked = [
        marks(column, higher_is_better=each.higher_is_better) if comparable else [""] * len(found)
        for each, column in zip(metrics, columns, strict=True)
    ]
    fewest = fewest_rounds([result.reached for result in found]) if comparable else None
    private = any(result.epsilon is not None for result in found)
    rows = []
    for index, result in enumerate(found):
        cells = [(result.label, "")]
        for each, column, mark in zip(metrics, columns, marked, strict=True):
            cells.append((format_value(column[index], each), mark[index]))
        cells += [(f"{100 * mean(values):.1f}", "") for values in (result.last, result.best)]
        if target is not None:
            first = fewest is not None and fewest_rounds([result.reached]) == fewest
            cells.append((format_rounds(result.reached), "best" if first else ""))
        if private:
            cells.append(("∞" if result.epsilon is None else f"{result.epsilon:.2f}", ""))
        rows.append([*cells, (_seconds(result.seconds), ""), (f"{result.megabytes:,.0f}", "")])
    headings = ["", *(each.heading for each in metrics), "last %", "best %"]
    headings += [f"rounds to {100 * target:g} %"] if target is not None else []
    headings += ["ε"] if private else []
    return ComparisonTable([*headings, "s", "MB"], rows, _legend(found, metrics, comparable), explain_terms(groups))


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f}" if seconds < 100 else f"{seconds:,.0f}"


def _federation(group: Group) -> str:
    """The data and how they are distributed, which runs must share to be compared."""
    table = completed(group.first.table)
    return str([table.get(key) for key in (*DATA, "partition", "clients")])


def _rounds_of_means(found: Sequence[MethodResult]) -> str:
    """The rounds whose means are shown; runs that ended early may have fewer than ten."""
    kinds = {mean_over(run.summary["rounds"]) for result in found for run in result.group.runs}
    return " or ".join(sorted(kinds, reverse=True))


def _legend(found: Sequence[MethodResult], metrics: Sequence[Metric], comparable: bool) -> str:
    """What the numbers and marks of a comparison mean, and which results are incomplete."""
    names = ", ".join(each.label for each in metrics)
    text = f"{names[0].upper()}{names[1:]}: means over {_rounds_of_means(found)}; last: accuracy of the last round; "
    text += "best: the highest test accuracy."
    most = max(len(result.group.runs) for result in found)
    if not comparable:
        text += " Data or clients differ, so no best value is marked."
    elif most > 1:
        text += " ± standard deviation over seeds; ≈ not significantly different from the best (95 %, paired by seed)."
    else:
        text += " With one seed, ties cannot be determined."
    fewer = [result for result in found if len(result.group.runs) < most]
    if fewer and comparable:
        named = "; ".join(f"{result.label} has only {', '.join(map(str, result.group.seeds))}" for result in fewer)
        text += f" Fewer seeds: {named}; best and ≈ are determined over the seeds that all methods have."
    unfinished = [result.label for result in found if result.unfinished]
    return text + (f" Not finished: {', '.join(unfinished)}." if unfinished else "")
