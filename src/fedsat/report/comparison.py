"""How methods stand to each other over seeds: means, deviations, and which differences are noise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedsat.experiment.store import completed
from fedsat.metrics import COMPARED, Metric, rounds_to_target
from fedsat.report.groups import Group

STUDENT = (12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
"""97.5 % points of Student's t for 1 to 10 degrees of freedom."""
STUDENT_BEYOND = 2.2

BySeed = Mapping[int, float]


@dataclass(frozen=True)
class MethodResult:
    """What one model of one group came to, seed by seed."""

    label: str
    group: Group
    qualities: dict[str, BySeed]
    """The means of the last ten rounds, by metric; empty for a metric that the runs do not have."""
    last: BySeed
    best: BySeed
    reached: list[int | None]
    """Rounds to the target for each seed, none where it was not reached; empty without a target."""
    seconds: float
    megabytes: float
    unfinished: bool
    """Whether a run has fewer rounds than its configuration asks for."""


def compared_metrics(groups: Sequence[Group]) -> list[Metric]:
    """The metrics that tables and charts show for these runs: those of every run, and the users' own."""
    found = {each.name: each for each in COMPARED}
    for group in groups:
        for run in group.runs:
            found |= {each.name: each for each in run.own_metrics if each.name not in found}
    return list(found.values())


def method_results(groups: Sequence[Group], target: float | None = None) -> list[MethodResult]:
    """One entry for each group, and one for every other model that its method reports."""
    found, metrics = [], compared_metrics(groups)
    for group in groups:
        found.append(_method_result(group.label, group, metrics, None, target))
        for model in group.first.summary.get("models", {}):
            found.append(_method_result(f"{group.label}, {model}", group, metrics, model, target))
    return found


def _method_result(
    label: str, group: Group, metrics: Sequence[Metric], model: str | None, target: float | None
) -> MethodResult:
    quoted = {run.seed: _part(run.summary, model) for run in group.runs}
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
            each.name: {seed: q["last_ten"][each.name] for seed, q in quoted.items() if each.name in q["last_ten"]}
            for each in metrics
        },
        last={seed: q["accuracy"] for seed, q in quoted.items()},
        best={seed: q["best"]["accuracy"] for seed, q in quoted.items()},
        reached=reached,
        seconds=float(np.mean([summary["seconds"] for summary in summaries])),
        megabytes=float(np.mean([summary["bytes_down"] + summary["bytes_up"] for summary in summaries])) / 1e6,
        unfinished=any(run.ended_early for run in group.runs),
    )


def _part(numbers: Mapping[str, Any], model: str | None) -> Mapping[str, Any]:
    """The global model's numbers, or those of another model that the method reports."""
    part: Mapping[str, Any] = numbers if model is None else numbers["models"][model]
    return part


def mean(values: BySeed) -> float:
    """The mean over seeds."""
    return float(np.mean(list(values.values())))


def deviation(values: BySeed) -> float | None:
    """The standard deviation over seeds (n − 1); none from a single one."""
    return float(np.std(list(values.values()), ddof=1)) if len(values) > 1 else None


def tied(best: BySeed, other: BySeed) -> bool:
    """Whether the difference to the best is within the seeds' noise.

    Methods share federation and sampling seed by seed, so the differences are taken by seed. They are noise if the
    95 % interval of their mean (Student's t) includes zero. From one seed in common no tie can be told.
    """
    seeds = sorted(best.keys() & other.keys())
    if len(seeds) < 2:
        return False
    differences = np.array([best[seed] - other[seed] for seed in seeds])
    freedom = len(seeds) - 1
    quantile = STUDENT[freedom - 1] if freedom <= len(STUDENT) else STUDENT_BEYOND
    return bool(abs(differences.mean()) <= quantile * differences.std(ddof=1) / np.sqrt(len(seeds)))


def marks(columns: Sequence[BySeed], *, higher_is_better: bool = True) -> list[str]:
    """For each entry of a column `best`, `tie` (with the best) or nothing, judged over the seeds that all have.

    A single entry is no contest, and neither are entries without a seed in common. Empty entries do not take part.
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


def written(values: BySeed, metric: Metric = COMPARED[0]) -> str:
    """A metric over seeds: mean±deviation, one number for one seed, a dash for none."""
    if not values:
        return "–"
    noise = deviation(values)
    return metric.written(mean(values)) + (f"±{metric.written(noise)}" if noise is not None else "")


def rounds_written(reached: Sequence[int | None]) -> str:
    """Rounds to the target: their mean, or how many of the seeds reached it, or a dash."""
    there = [number for number in reached if number is not None]
    if len(there) == len(reached) > 0:
        return f"{np.mean(there):.0f}"
    return f"{len(there)} of {len(reached)}" if there else "–"


def quickest(all_reached: Sequence[Sequence[int | None]]) -> float | None:
    """The fewest rounds to the target among those that reach it with every seed."""
    means = [float(np.mean([n or 0 for n in reached])) for reached in all_reached if reached and None not in reached]
    return min(means, default=None)


@dataclass(frozen=True)
class Comparison:
    """The table that shows methods side by side, for a terminal or a page to draw."""

    headings: list[str]
    rows: list[list[tuple[str, str]]]
    """Each cell's text, and its mark: `best`, `tie` or nothing."""
    legend: str


def comparison(groups: Sequence[Group], target: float | None = None) -> Comparison:
    """Methods side by side over seeds."""
    found = method_results(groups, target)
    one_contest = len({_federation(group) for group in groups}) == 1
    metrics = compared_metrics(groups)
    columns = [[result.qualities[each.name] for result in found] for each in metrics]
    marked = [
        marks(column, higher_is_better=each.higher_is_better) if one_contest else [""] * len(found)
        for each, column in zip(metrics, columns, strict=True)
    ]
    fewest = quickest([result.reached for result in found]) if one_contest else None
    rows = []
    for index, result in enumerate(found):
        cells = [(result.label, "")]
        for each, column, mark in zip(metrics, columns, marked, strict=True):
            cells.append((written(column[index], each), mark[index]))
        cells += [(f"{100 * mean(values):.1f}", "") for values in (result.last, result.best)]
        if target is not None:
            led = fewest is not None and quickest([result.reached]) == fewest
            cells.append((rounds_written(result.reached), "best" if led else ""))
        rows.append([*cells, (f"{result.seconds:.1f}", ""), (f"{result.megabytes:,.0f}", "")])
    headings = ["", *(each.heading for each in metrics), "last %", "best %"]
    headings += [f"rounds to {100 * target:g} %"] if target is not None else []
    return Comparison([*headings, "s", "MB"], rows, _legend(found, metrics, one_contest))


def _federation(group: Group) -> str:
    """The data and how they are spread: what methods must share to stand against each other."""
    table = completed(group.first.table)
    return str([table.get(key) for key in ("dataset", "image_size", "partition", "clients")])


def _legend(found: Sequence[MethodResult], metrics: Sequence[Metric], one_contest: bool) -> str:
    """What the marks and numbers of a comparison mean, and what they leave out."""
    names = ", ".join(each.label for each in metrics)
    text = f"{names[0].upper()}{names[1:]}: means of the last ten rounds; last, best: accuracy of that round."
    most = max(len(result.group.runs) for result in found)
    if not one_contest:
        text += " Data or clients differ: no best is named."
    elif most > 1:
        text += " ± deviation over seeds; ≈ not told apart from the best (95 %, paired by seed)."
    else:
        text += " One seed: no ties can be told."
    fewer = [result for result in found if len(result.group.runs) < most]
    if fewer and one_contest:
        named = "; ".join(f"{result.label} only {', '.join(map(str, result.group.seeds))}" for result in fewer)
        text += f" Fewer seeds: {named}; best and ≈ are judged over the seeds that all have."
    unfinished = [result.label for result in found if result.unfinished]
    return text + (f" Not finished: {', '.join(unfinished)}." if unfinished else "")
