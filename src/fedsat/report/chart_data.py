"""The numbers behind the charts, for the page and for the figures.

Long runs and large federations are thinned to keep the page small. `notes` describes what was left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fedsat import data
from fedsat.errors import FedsatError
from fedsat.experiment.config import DATA, Config
from fedsat.experiment.store import StoredRun
from fedsat.metrics import Floats, Metric, RoundRecord
from fedsat.report.comparison import compared_metrics
from fedsat.report.detail_data import class_columns, class_data, client_data
from fedsat.report.groups import Group
from fedsat.report.palette import styles

EFFECTIVE = "effective_clients"
MAX_POINTS, MAX_WEIGHTS, MAX_CLIENTS = 200, 2000, 300
"""Limits for each group, if there are at most `FULL_GROUPS`: points of a curve, weights, and client accuracies."""
FULL_GROUPS = 50
"""With more groups, each gets a smaller share, so that the page does not grow any further."""
MAX_RECALL_CELLS, MAX_CONFUSION_CELLS, MAX_PARTITION_CELLS = 250_000, 250_000, 100_000
"""Limits for all recall maps, for all confusion matrices, and for each partition."""


def chart_data(groups: Sequence[Group]) -> dict[str, Any]:
    """The data of all charts."""
    notes: list[str] = []
    federations: list[dict[str, Any]] = []
    known: dict[str, int | None] = {}
    entries, metrics = [], compared_metrics(groups)
    looks = styles([(str(group.first.table["algorithm"]["name"]), group.first.method) for group in groups])
    for group, style in zip(groups, looks, strict=True):
        entry = {**group_data(group, metrics, len(groups)), "colour": style.colour, "dash": list(style.dash)}
        key = str([group.first.table.get(name) for name in ("dataset", "image_size", "partition", "clients", "seed")])
        if key not in known:
            known[key] = _add_federation(group.first, federations, notes)
        entry["federation"] = known[key]
        entries.append(entry)
    longest = max(len(run.evaluated) for group in groups for run in group.runs)
    points = _share(MAX_POINTS, len(groups))
    if longest > points:
        notes.append(f"Curves show {points} of up to {longest} evaluated rounds.")
    return {
        "metrics": [curve_data(each) for each in metrics],
        "class_columns": class_columns(),
        "groups": entries,
        "federations": federations,
        "notes": notes,
    }


def curve_data(metric: Metric) -> dict[str, str]:
    """The description of a metric's chart."""
    return {"name": metric.name, "title": metric.caption, "unit": metric.unit}


def group_data(group: Group, metrics: Sequence[Metric], groups: int) -> dict[str, Any]:
    """The data of one group out of `groups`."""
    records = _common_rounds(group)
    rounds = thin(list(records), _share(MAX_POINTS, groups))
    classes = list(group.first.summary.get("class_names") or _class_numbers(group.first))
    return {
        "label": group.label,
        "seeds": group.seeds,
        "classes": classes,
        "rounds": rounds,
        "curves": _curves([records[number] for number in rounds], metrics),
        "recall": _recall(records, max(10, MAX_RECALL_CELLS // (groups * len(classes)))),
        "clients": _client_accuracies(group, _share(MAX_CLIENTS, groups)),
        "weights": _weights(group.first, _share(MAX_WEIGHTS, groups)),
        "details": class_data(group, len(classes), groups),
        "each_client": client_data(group, groups),
        "confusion": _confusion(group) if len(classes) ** 2 * groups <= MAX_CONFUSION_CELLS else None,
    }


def _share(limit: int, groups: int) -> int:
    """The limit for each of `groups`."""
    return max(10, limit * FULL_GROUPS // max(FULL_GROUPS, groups))


def thin(items: list[Any], limit: int) -> list[Any]:
    """At most `limit` of the items, evenly spaced, including the first and the last."""
    if len(items) <= limit:
        return items
    return [items[index] for index in np.linspace(0, len(items) - 1, limit).round().astype(int)]


def _class_numbers(run: StoredRun) -> list[str]:
    return [str(number) for number in range(len(run.evaluated[-1].metrics["recall"]))]


def _common_rounds(group: Group) -> dict[int, list[RoundRecord]]:
    """The records of the rounds that were evaluated with all seeds, one record for each seed."""
    by_seed = [{record.round: record for record in run.evaluated} for run in group.runs]
    shared = set.intersection(*(set(records) for records in by_seed))
    return {number: [records[number] for records in by_seed] for number in sorted(shared)}


def _curves(rounds: list[list[RoundRecord]], metrics: Sequence[Metric]) -> dict[str, Any]:
    """Curves of the metrics that were recorded, and of the effective clients."""
    curves = {EFFECTIVE: _band(rounds, lambda record: record.effective_clients)}
    for each in metrics:
        if all(each.name in record.metrics for record in rounds[-1]):
            scale = 100 if each.unit == "%" else 1
            curves[each.name] = _band(rounds, lambda record, n=each.name: record.metrics.get(n), scale)  # type: ignore[misc]
    return curves


def _band(
    rounds: list[list[RoundRecord]], value: Callable[[RoundRecord], float | None], scale: float = 1
) -> dict[str, Any]:
    """Mean, lowest and highest value over seeds; only the mean if there is one seed."""
    values = scale * np.array([[value(record) for record in records] for records in rounds], dtype=np.float64)
    band = {"mean": _rounded(values.mean(axis=1))}
    if values.shape[1] > 1:
        band |= {"low": _rounded(values.min(axis=1)), "high": _rounded(values.max(axis=1))}
    return band


def _rounded(values: Floats) -> list[float | None]:
    return [None if np.isnan(value) else round(float(value), 3) for value in values]


def _recall(records: dict[int, list[RoundRecord]], limit: int) -> dict[str, Any]:
    """Recall of each class (rows) over rounds (columns) in per cent, averaged over seeds."""
    rounds = thin(list(records), min(limit, 120))
    recalls = [[record.metrics["recall"] for record in records[number]] for number in rounds]
    values = np.array(recalls, dtype=np.float64).mean(axis=1)
    return {"rounds": rounds, "rows": [_whole(row) for row in 100 * values.T]}


def _whole(row: Floats) -> list[int | None]:
    return [None if np.isnan(value) else round(float(value)) for value in row]


def _client_accuracies(group: Group, limit: int) -> list[float | None] | None:
    """Sorted client accuracies after the last round, over all seeds, thinned if there are many."""
    values = [v for run in group.runs for v in run.stored.get("client_accuracies", []) if v is not None]
    return _rounded(100 * np.array(thin(sorted(values), limit))) if values else None


def _weights(run: StoredRun, limit: int) -> dict[str, Any]:
    """The weights of the clients that responded and the priority class in each round of one run."""
    per_round = max(1, *(len(record.weights) for record in run.records))
    records = thin([record for record in run.records if record.weights], max(10, limit // per_round))
    return {
        "seed": run.seed,
        "equal": 100 / per_round,
        "rounds": [record.round for record in records],
        "shares": [_rounded(100 * np.array(record.weights)) for record in records],
        "priority": [record.priority_class for record in records],
    }


def _confusion(group: Group) -> list[list[int | None]] | None:
    """The confusion matrix after the last round, summed over seeds, each row in per cent of its true class."""
    matrices = [run.stored["confusion"] for run in group.runs if "confusion" in run.stored]
    if not matrices:
        return None
    counts = np.sum(matrices, axis=0, dtype=np.float64)
    labels = counts.sum(axis=1, keepdims=True)
    return [_whole(row) for row in np.where(labels > 0, 100 * counts / np.maximum(labels, 1), np.nan)]


def _add_federation(run: StoredRun, federations: list[dict[str, Any]], notes: list[str]) -> int | None:
    """Rebuild the federation of a run from its configuration. Returns its index, or None if that is not possible."""
    table = run.table
    if "data" in run.stored:
        notes.append(f"The partition of {run.folder.name} is not shown: its data are {run.stored['data']}.")
        return None
    try:
        dataset = Config.of({key: table[key] for key in (*DATA, "seed") if key in table}).load_dataset()
        federation = data.Federation.build(dataset, table["partition"], table["clients"], run.seed)
    except FedsatError as error:
        notes.append(f"The partition of {table['dataset']} is not shown: {error}")
        return None
    clients, classes = federation.class_counts.shape
    shown = max(1, min(clients, MAX_PARTITION_CELLS // classes))
    if shown < clients:
        notes.append(f"The partition of {dataset.name} shows the first {shown:,} of {clients:,} clients.")
    federations.append(
        {
            "label": f"{dataset.name}, {table['partition']['name']}, seed {run.seed}",
            "classes": list(dataset.class_names),
            "clients": clients,
            "names": list(dataset.client_names) if len(dataset.client_names) == clients else None,
            "rows": federation.class_counts[:shown].T.tolist(),
        }
    )
    return len(federations) - 1
