"""Metrics: confusion counts, evaluations, the table of metrics, and the record of a round."""

from fedsat.metrics.choose import detail_of, find_metrics, judged_by, known, measure, metric, metric_path
from fedsat.metrics.counts import ClassCounts, confusion_counts, rounds_to_target
from fedsat.metrics.evaluation import (
    NO_DETAIL,
    ClientAccuracy,
    Detail,
    Evaluation,
    accuracy_by_client,
    expected_accuracy,
)
from fedsat.metrics.measures import Counts, Floats, share
from fedsat.metrics.record import RoundRecord, Values, worst_class
from fedsat.metrics.table import (
    CHOICES,
    COMPARED,
    FORMS,
    MEASURES,
    METRICS,
    Measure,
    Metric,
    compared,
    is_imbalanced,
    single,
    written,
)

__all__ = [
    "CHOICES",
    "COMPARED",
    "FORMS",
    "MEASURES",
    "METRICS",
    "NO_DETAIL",
    "ClassCounts",
    "ClientAccuracy",
    "Counts",
    "Detail",
    "Evaluation",
    "Floats",
    "Measure",
    "Metric",
    "RoundRecord",
    "Values",
    "accuracy_by_client",
    "compared",
    "confusion_counts",
    "detail_of",
    "expected_accuracy",
    "find_metrics",
    "is_imbalanced",
    "judged_by",
    "known",
    "measure",
    "metric",
    "metric_path",
    "rounds_to_target",
    "share",
    "single",
    "worst_class",
    "written",
]
