"""Results of a model on new samples, as tables and as plain values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from rich import box
from rich.table import Table
from rich.text import Text

from fedsat.experiment.card import OF_CLASSES
from fedsat.metrics import CHOICES, METRICS, Evaluation, Metric, known
from fedsat.metrics.intervals import intervals
from fedsat.report.tables import classes_table

OVERALL: Sequence[Metric] = (
    *(METRICS[name] for name in ("balanced_accuracy", "worst_class_recall", "accuracy", "loss")),
    *(CHOICES[name] for name in ("f1", "mcc", "auroc", "average_precision", "brier", "ece")),
)
"""What is shown about all samples."""
MOST_CLASSES = 12
"""Classes of the largest confusion matrix that fits on a terminal."""


def evaluated_values(evaluation: Evaluation, class_names: Sequence[str]) -> dict[str, Any]:
    """Return the results as plain values: overall, with 95 % intervals, and of each class."""
    with np.errstate(invalid="ignore"):
        overall = dict(zip([each.name for each in OVERALL], known(each(evaluation) for each in OVERALL), strict=True))
        classes = {each.name: known(each.compute(evaluation.counts)) for each in OF_CLASSES}
    return {
        "samples": int(evaluation.confusion.sum()),
        "class_names": list(class_names),
        "overall": overall,
        "intervals": intervals(evaluation, OVERALL, seed=0),
        "classes": {"samples": evaluation.confusion.sum(1).tolist(), **classes},
        "confusion": evaluation.confusion.tolist(),
    }


def evaluated_tables(values: dict[str, Any]) -> list[Table]:
    """Return the results as tables: overall, of each class, and, for few classes, the confusion matrix."""
    names = values["class_names"]
    tables = [_overall_table(values), classes_table(values["classes"], names, OF_CLASSES)]
    return [*tables, _confusion_table(values["confusion"], names)] if len(names) <= MOST_CLASSES else tables


def _overall_table(values: dict[str, Any]) -> Table:
    table = Table(title=f"{values['samples']:,} samples", box=box.SIMPLE_HEAD)
    for heading in ("", "value", "95 % interval"):
        table.add_column(heading, justify="right" if heading else "left")
    for each in OVERALL:
        value, interval = values["overall"][each.name], values["intervals"].get(each.name)
        table.add_row(Text(each.heading), each.shown(value), each.range(interval))
    return table


def _confusion_table(confusion: Sequence[Sequence[int]], names: Sequence[str]) -> Table:
    table = Table(title="true class by row, predicted class by column", box=box.SIMPLE_HEAD)
    for heading in ("", *names):
        table.add_column(Text(heading), justify="right" if heading else "left")
    for name, row in zip(names, confusion, strict=True):
        table.add_row(Text(name), *(f"{count:,}" for count in row))
    return table
