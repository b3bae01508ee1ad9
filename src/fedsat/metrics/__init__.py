"""Metrics: confusion counts, evaluations, the table of metrics, and the record of a round."""

from fedsat.metrics.counts import ClassCounts, confusion_counts, rounds_to_target
from fedsat.metrics.evaluation import (
    ClientAccuracy,
    Evaluation,
    Floats,
    accuracy_by_client,
    expected_accuracy,
    share,
)
from fedsat.metrics.record import RoundRecord, Values, worst_class
from fedsat.metrics.table import COMPARED, METRICS, Metric, find_metrics, known, measure, metric, metric_path

__all__ = [
    "COMPARED",
    "METRICS",
    "ClassCounts",
    "ClientAccuracy",
    "Evaluation",
    "Floats",
    "Metric",
    "RoundRecord",
    "Values",
    "accuracy_by_client",
    "confusion_counts",
    "expected_accuracy",
    "find_metrics",
    "known",
    "measure",
    "metric",
    "metric_path",
    "rounds_to_target",
    "share",
    "worst_class",
]
