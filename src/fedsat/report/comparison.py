"""How methods stand to each other over seeds: means, deviations, and which differences are noise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedsat.experiment.store import completed
from fedsat.metrics import rounds_to_target
from fedsat.report.groups import Group

STUDENT = (12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
"""97.5 % points of Student's t for 1 to 10 degrees of freedom."""
STUDENT_BEYOND = 2.2

QUALITIES = {"test_accuracy": "accuracy", "worst_recall": "worst class", "lowest_client": "lowest client"}
"""What is compared, each as the mean of the last ten rounds."""

BySeed = Mapping[int, float]


@dataclass(frozen=True)
class MethodResult:
    """What one model of one group came to, seed by seed."""

    label: str
    group: Group
    qualities: dict[str, BySeed]
    """The means of the last ten rounds."""
    last: BySeed
    best: BySeed
    reached: list[int | None]
    """Rounds to the target for each seed, none where it was not reached; empty without a target."""
    seconds: float
    megabytes: float
    unfinished: bool
    """Whether a run has fewer rounds than its configuration asks for."""


def method_results(groups: Sequence[Group], target: float | None = None) -> list[MethodResult]:
    """One entry for each group, and one for every other model that its method reports."""
    found = []
    for group in groups:
        found.append(_method_result(group.label, group, None, target))
        for model in group.first.summary.get("models", {}):
            found.append(_method_result(f"{group.label}, {model}", group, model, target))
    return found


def _method_result(label: str, group: Group, model: str | None, target: float | None) -> MethodResult:
    quoted = {run.seed: _part(run.summary, model) for run in group.runs}
    reached = []
    for run in group.runs if target is not None else ():
        accuracy = [float(_part(line, model)["test_accuracy"]) for line in run.evaluated]
        reached.append(rounds_to_target([line["round"] for line in run.evaluated], accuracy, target or 0.0))
    summaries = [run.summary for run in group.runs]
    return MethodResult(
        label=label,
        group=group,
        qualities={key: {seed: q["last_ten"][key] for seed, q in quoted.items()} for key in QUALITIES},
        last={seed: q["test_accuracy"] for seed, q in quoted.items()},
        best={seed: q["best"]["test_accuracy"] for seed, q in quoted.items()},
        reached=reached,
        seconds=float(np.mean([summary["seconds"] for summary in summaries])),
        megabytes=float(np.mean([summary["bytes_down"] + summary["bytes_up"] for summary in summaries])) / 1e6,
        unfinished=any(len(run.metrics) < run.table["rounds"] for run in group.runs),
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


def marks(columns: Sequence[BySeed]) -> list[str]:
    """For each entry of a column `best`, `tie` (with the best) or nothing, judged over the seeds that all have.

    A single entry is no contest, and neither are entries without a seed in common.
    """
    seeds = set.intersection(*(set(values) for values in columns))
    if len(columns) < 2 or not seeds:
        return [""] * len(columns)
    shared = [{seed: values[seed] for seed in seeds} for values in columns]
    top = max(map(mean, shared))
    leader = next(values for values in shared if mean(values) == top)
    return ["best" if mean(values) == top else "tie" if tied(leader, values) else "" for values in shared]


def written(values: BySeed) -> str:
    """Shares over seeds as per cent: mean±deviation, or one number for one seed."""
    noise = deviation(values)
    return f"{100 * mean(values):.1f}" + (f"±{100 * noise:.1f}" if noise is not None else "")


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
    columns = [[result.qualities[key] for result in found] for key in QUALITIES]
    marked = [marks(column) if one_contest else [""] * len(found) for column in columns]
    fewest = quickest([result.reached for result in found]) if one_contest else None
    rows = []
    for index, result in enumerate(found):
        cells = [(result.label, "")]
        cells += [(written(column[index]), mark[index]) for column, mark in zip(columns, marked, strict=True)]
        cells += [(f"{100 * mean(values):.1f}", "") for values in (result.last, result.best)]
        if target is not None:
            led = fewest is not None and quickest([result.reached]) == fewest
            cells.append((rounds_written(result.reached), "best" if led else ""))
        rows.append([*cells, (f"{result.seconds:.1f}", ""), (f"{result.megabytes:,.0f}", "")])
    headings = ["", *(f"{name} %" for name in QUALITIES.values()), "last %", "best %"]
    headings += [f"rounds to {100 * target:g} %"] if target is not None else []
    return Comparison([*headings, "s", "MB"], rows, _legend(found, one_contest))


def _federation(group: Group) -> str:
    """The data and how they are spread: what methods must share to stand against each other."""
    table = completed(group.first.table)
    return str([table.get(key) for key in ("dataset", "image_size", "partition", "clients")])


def _legend(found: Sequence[MethodResult], one_contest: bool) -> str:
    """What the marks and numbers of a comparison mean, and what they leave out."""
    text = "Accuracy, worst class, lowest client: means of the last ten rounds; last, best: accuracy of that round."
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
