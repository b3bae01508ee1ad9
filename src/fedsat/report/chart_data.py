"""What the charts show, as plain numbers: for the page's script and for the figures alike.

Long runs and large federations are thinned, so that a page stays small; what was left out is said in `notes`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fedsat import data
from fedsat.errors import FedsatError
from fedsat.experiment.store import StoredRun
from fedsat.metrics import Floats, Metric, RoundRecord
from fedsat.report.comparison import compared_metrics
from fedsat.report.groups import Group

EFFECTIVE = "effective_clients"
PALETTE = (
    "#3b7dd8", "#e0762f", "#2a9d6f", "#cf4a63", "#8f68cf", "#96724f", "#d468aa", "#25a3b6", "#a39b2a", "#7f8a96",
)  # fmt: skip
POINTS, DOTS, VALUES = 200, 2000, 300
"""The most points of a curve, weights of a group, and client accuracies of a group; fewer where groups are many."""
MANY = 50
"""More groups than these share what as many would have."""
HEAT_CELLS, MATRIX_CELLS, PARTITION_CELLS = 250_000, 250_000, 100_000
"""The most cells of all recall maps, of all confusion matrices, and of one partition."""


def chart_data(groups: Sequence[Group]) -> dict[str, Any]:
    """Everything that is drawn, for all groups."""
    notes: list[str] = []
    federations: list[dict[str, Any]] = []
    known: dict[str, int | None] = {}
    entries, metrics = [], compared_metrics(groups)
    for group in groups:
        entry = group_data(group, metrics, len(groups))
        key = str([group.first.table.get(name) for name in ("dataset", "image_size", "partition", "clients", "seed")])
        if key not in known:
            known[key] = _add_federation(group.first, federations, notes)
        entry["federation"] = known[key]
        entries.append(entry)
    longest, points = max(len(run.evaluated) for group in groups for run in group.runs), _share(POINTS, len(groups))
    if longest > points:
        notes.append(f"Curves show {points} of up to {longest} evaluated rounds.")
    return {
        "metrics": [{"name": each.name, "title": each.caption, "unit": each.unit} for each in metrics],
        "groups": entries,
        "federations": federations,
        "notes": notes,
        "palette": PALETTE,
    }


def group_data(group: Group, metrics: Sequence[Metric], groups: int) -> dict[str, Any]:
    """What is drawn of one group among `groups`."""
    lines = _common_lines(group)
    rounds = thinned(list(lines), _share(POINTS, groups))
    classes = list(group.first.summary.get("class_names") or _numbers(group.first))
    return {
        "label": group.label,
        "seeds": group.seeds,
        "classes": classes,
        "rounds": rounds,
        "curves": _curves([lines[number] for number in rounds], metrics),
        "recall": _recall(lines, max(10, HEAT_CELLS // (groups * len(classes)))),
        "clients": _client_accuracies(group, _share(VALUES, groups)),
        "weights": _weights(group.first, _share(DOTS, groups)),
        "confusion": _confusion(group) if len(classes) ** 2 * groups <= MATRIX_CELLS else None,
    }


def _share(most: int, groups: int) -> int:
    """How much of something each of `groups` may have, so that the page stays small."""
    return max(10, most * MANY // max(MANY, groups))


def thinned(items: list[Any], most: int) -> list[Any]:
    """At most `most` of the items, evenly spread, the first and the last among them."""
    if len(items) <= most:
        return items
    return [items[index] for index in np.linspace(0, len(items) - 1, most).round().astype(int)]


def _numbers(run: StoredRun) -> list[str]:
    return [str(number) for number in range(len(run.evaluated[-1].metrics["recall"]))]


def _common_lines(group: Group) -> dict[int, list[RoundRecord]]:
    """The metrics of each round that all seeds have evaluated, one entry a seed."""
    by_seed = [{record.round: record for record in run.evaluated} for run in group.runs]
    shared = set.intersection(*(set(lines) for lines in by_seed))
    return {number: [lines[number] for lines in by_seed] for number in sorted(shared)}


def _curves(rounds: list[list[RoundRecord]], metrics: Sequence[Metric]) -> dict[str, Any]:
    """The curves of the metrics that these rounds have, and of the effective clients."""
    curves = {EFFECTIVE: _band(rounds, lambda record: record.effective_clients)}
    for each in metrics:
        if all(each.name in record.metrics for record in rounds[-1]):
            scale = 100 if each.unit == "%" else 1
            curves[each.name] = _band(rounds, lambda record, n=each.name: record.metrics.get(n), scale)  # type: ignore[misc]
    return curves


def _band(
    rounds: list[list[RoundRecord]], value: Callable[[RoundRecord], float | None], scale: float = 1
) -> dict[str, Any]:
    """Mean, lowest and highest over seeds; one seed has no band."""
    values = scale * np.array([[value(record) for record in records] for records in rounds], dtype=np.float64)
    band = {"mean": _rounded(values.mean(axis=1))}
    if values.shape[1] > 1:
        band |= {"low": _rounded(values.min(axis=1)), "high": _rounded(values.max(axis=1))}
    return band


def _rounded(values: Floats) -> list[float | None]:
    return [None if np.isnan(value) else round(float(value), 3) for value in values]


def _recall(lines: dict[int, list[RoundRecord]], most: int) -> dict[str, Any]:
    """Recall of each class over rounds, the mean over seeds in per cent: rows are classes."""
    rounds = thinned(list(lines), min(most, 120))
    recalls = [[record.metrics["recall"] for record in lines[number]] for number in rounds]
    values = np.array(recalls, dtype=np.float64).mean(axis=1)
    return {"rounds": rounds, "rows": [_whole(row) for row in 100 * values.T]}


def _whole(row: Floats) -> list[int | None]:
    return [None if np.isnan(value) else round(float(value)) for value in row]


def _client_accuracies(group: Group, most: int) -> list[float | None] | None:
    """Clients' accuracies at the end, of all seeds together, in order; evenly spaced ones where there are many."""
    values = [v for run in group.runs for v in run.stored.get("client_accuracies", []) if v is not None]
    return _rounded(100 * np.array(thinned(sorted(values), most))) if values else None


def _weights(run: StoredRun, most: int) -> dict[str, Any]:
    """The weights of the clients that responded and the priority class, round by round, of one seed."""
    per_round = max(1, *(len(record.weights) for record in run.records))
    records = thinned([record for record in run.records if record.weights], max(10, most // per_round))
    return {
        "seed": run.seed,
        "equal": 100 / per_round,
        "rounds": [record.round for record in records],
        "shares": [_rounded(100 * np.array(record.weights)) for record in records],
        "priority": [record.priority_class for record in records],
    }


def _confusion(group: Group) -> list[list[int | None]] | None:
    """The last round's confusion matrix of all seeds together, each row in per cent of its class."""
    matrices = [run.stored["confusion"] for run in group.runs if "confusion" in run.stored]
    if not matrices:
        return None
    counts = np.sum(matrices, axis=0, dtype=np.float64)
    labels = counts.sum(axis=1, keepdims=True)
    return [_whole(row) for row in np.where(labels > 0, 100 * counts / np.maximum(labels, 1), np.nan)]


def _add_federation(run: StoredRun, federations: list[dict[str, Any]], notes: list[str]) -> int | None:
    """Rebuild a run's federation from its configuration; its number, or none if the data are not at hand."""
    table = run.table
    if "data" in run.stored:
        notes.append(f"The partition of {run.folder.name} is not shown: its data are {run.stored['data']}.")
        return None
    try:
        dataset = data.load(table["dataset"], image_size=table.get("image_size"), seed=run.seed)
        federation = data.Federation.build(dataset, table["partition"], table["clients"], run.seed)
    except FedsatError as error:
        notes.append(f"The partition of {table['dataset']} is not shown: {error}")
        return None
    clients, classes = federation.class_counts.shape
    shown = max(1, min(clients, PARTITION_CELLS // classes))
    if shown < clients:
        notes.append(f"The partition of {dataset.name} shows the first {shown:,} of {clients:,} clients.")
    federations.append(
        {
            "label": f"{dataset.name}, {table['partition']['name']}, seed {run.seed}",
            "classes": list(dataset.class_names),
            "clients": clients,
            "rows": federation.class_counts[:shown].T.tolist(),
        }
    )
    return len(federations) - 1
