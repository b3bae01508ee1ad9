"""The table of metrics: what is computed from an evaluation, and how it is displayed.

Runs, comparisons, figures and the report page use this table. `METRICS` are recorded in every evaluated round, and
`CHOICES` are recorded if `--metrics` names them. A measure, such as F1, has up to eight forms (`FORMS`): its mean over
the classes, its worst class, one number per client, and so on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedsat.errors import DataError, UsageError
from fedsat.metrics import measures
from fedsat.metrics.evaluation import NO_DETAIL, Detail, Evaluation
from fedsat.metrics.measures import Counts, Floats, Measured

Unit = Literal["%", ""]
Compute = Callable[[Evaluation], Any]


def written(value: float, unit: Unit, digits: int = 1) -> str:
    """Format a value for display: shares in per cent, other numbers with two more digits."""
    return f"{100 * value:.{digits}f}" if unit == "%" else f"{value:.{digits + 2}f}"


@dataclass(frozen=True)
class Metric:
    """A number, or one number per class or client, computed from an evaluation."""

    name: str
    """The key in records and summaries."""
    label: str
    """The heading of the column in tables."""
    compute: Compute | None = None
    """None if only the description is known, as in a report about stored runs."""
    title: str = ""
    """The title of charts; the label if empty."""
    unit: Unit = "%"
    """`%` for shares, which are displayed times 100."""
    higher_is_better: bool = True
    compared: bool = False
    """Whether comparisons show it as a column and a chart."""
    per: Literal["", "class", "client"] = ""
    """What each number refers to, if there are several."""
    detail: Detail = NO_DETAIL
    """What has to be counted for it besides the confusion matrix."""
    measure: str = ""
    """The measure that it is a form of, for metrics in `CHOICES`."""

    @property
    def heading(self) -> str:
        """The label with its unit."""
        return f"{self.label} {self.unit}".rstrip()

    @property
    def caption(self) -> str:
        """The title of a chart with its unit."""
        title = self.title or self.label
        return f"{title}, {self.unit}" if self.unit else title

    def __call__(self, evaluation: Evaluation) -> Any:
        """Compute the metric."""
        if self.compute is None:
            raise UsageError(f"only the description of the metric {self.name} is known")
        return self.compute(evaluation)

    def written(self, value: float, digits: int = 1) -> str:
        """Format a value for display."""
        return written(value, self.unit, digits)

    def shown(self, value: float | None) -> str:
        """Format a value that may be undefined."""
        return "–" if value is None else self.written(value)

    def range(self, interval: Sequence[float | None] | None) -> str:
        """Format a confidence interval as `low–high`; nothing if it is unknown or undefined."""
        if interval is None or interval[0] is None or interval[1] is None:
            return ""
        return f"{self.written(interval[0])}–{self.written(interval[1])}"

    def description(self) -> dict[str, Any]:
        """Return the description that reports need."""
        return {
            "name": self.name, "label": self.label, "unit": self.unit, "higher_is_better": self.higher_is_better,
        }  # fmt: skip


@dataclass(frozen=True)
class Measure:
    """A quantity that is measured for each class or for all samples; its forms are metrics."""

    name: str
    label: str
    compute: Measured
    """From counts [...] to one number for each class, [..., m], or one for all samples, [...]."""
    unit: Unit = "%"
    higher_is_better: bool = True
    of_classes: bool = True
    scores: bool = False
    """Whether it needs histograms of the scores."""

    def shown(self, value: float | None) -> str:
        """Format a value that may be undefined."""
        return "–" if value is None else written(value, self.unit)

    def overall(self, counts: Counts) -> Floats:
        """Return one number for all samples: that of the measure, or its mean over the classes."""
        values = self.compute(counts)
        return _over_classes(np.nanmean, values) if self.of_classes else values

    def worst(self, values: Floats) -> Floats:
        """Return the worst of the values along the last axis."""
        return _over_classes(np.nanmin if self.higher_is_better else np.nanmax, values)

    def gap(self, values: Floats) -> Floats:
        """Return the difference between the best and the worst of the values along the last axis."""
        return _over_classes(np.nanmax, values) - _over_classes(np.nanmin, values)


def _over_classes(reduce: Callable[..., Any], values: Floats) -> Floats:
    """Reduce the last axis without its NaNs; NaN where there is nothing else."""
    unknown = np.asarray(np.isnan(values).all(-1))
    found: Floats = np.asarray(reduce(np.where(unknown[..., None], 0.0, values), axis=-1), dtype=np.float64)
    return np.where(unknown, np.nan, found)


def _weighted(values: Floats, counts: Counts) -> Floats:
    """The mean of the classes' values, weighted by their numbers of samples."""
    known = ~np.isnan(values)
    weights = np.where(known, counts.labels, 0.0)
    return measures.share((np.where(known, values, 0.0) * weights).sum(-1), weights.sum(-1))


MEASURES: Sequence[Measure] = (
    Measure("accuracy", "accuracy", measures.accuracy, of_classes=False),
    Measure("recall", "recall", measures.recall),
    Measure("precision", "precision", measures.precision),
    Measure("specificity", "specificity", measures.specificity),
    Measure("f1", "F1", measures.f1, unit=""),
    Measure("mcc", "MCC", measures.mcc, unit="", of_classes=False),
    Measure("auroc", "AUROC", measures.auroc, unit="", scores=True),
    Measure("average_precision", "average precision", measures.average_precision, unit="", scores=True),
    Measure("sensitivity_at_90", "sensitivity at 90 % specificity", measures.sensitivity_at(0.90), scores=True),
    Measure("sensitivity_at_95", "sensitivity at 95 % specificity", measures.sensitivity_at(0.95), scores=True),
    Measure("sensitivity_at_99", "sensitivity at 99 % specificity", measures.sensitivity_at(0.99), scores=True),
    Measure("brier", "Brier score", measures.brier, unit="", higher_is_better=False, scores=True),
    Measure("calibration_error", "calibration error", measures.calibration_error, "", False, scores=True),
    Measure("ece", "ECE", measures.ece, "", False, of_classes=False, scores=True),
)

FORMS: dict[str, str] = {
    "": "the mean over the classes",
    "weighted_": "the mean over the classes, weighted by their test samples",
    "class_": "one number per class",
    "worst_class_": "the worst class",
    "class_gap_": "the difference between the best and the worst class",
    "client_": "one number per client: its mean over the classes",
    "worst_client_": "the worst client",
    "client_gap_": "the difference between the best and the worst client",
}
"""Prefixes of a measure's name, as in `worst_class_f1`, and what the resulting metric is."""


def forms(measure: Measure) -> list[Metric]:
    """Return the metrics made from a measure; those about classes only for measures of each class."""
    name, label, better = measure.name, measure.label, measure.higher_is_better
    total = Detail(scores=measure.scores)
    clients = Detail(clients=True, client_scores=measure.scores)

    def of_clients(evaluation: Evaluation) -> Floats:
        if name == "accuracy":  # known for every client on real nodes as well
            return evaluation.client_accuracies
        return measure.overall(evaluation.client_counts)

    def made(prefix: str, text: str, compute: Compute, detail: Detail, **more: Any) -> Metric:
        described = {"unit": measure.unit, "higher_is_better": better, "detail": detail, "compared": True, **more}
        return Metric(prefix + name, text.format(label), compute, measure=name, **described)

    per_class = [
        made("weighted_", "weighted {}", lambda e: _weighted(measure.compute(e.counts), e.counts), total),
        made("class_", "{} of each class", lambda e: measure.compute(e.counts), total, per="class"),
        made("worst_class_", "worst-class {}", lambda e: measure.worst(measure.compute(e.counts)), total),
        made("class_gap_", "gap in {} between classes", lambda e: measure.gap(measure.compute(e.counts)), total,
             higher_is_better=False),
    ]  # fmt: skip
    known = NO_DETAIL if name == "accuracy" else clients
    return [
        made("", "{}", lambda e: measure.overall(e.counts), total),
        *(per_class if measure.of_classes else ()),
        made("client_", "{} of each client", of_clients, known, per="client"),
        made("worst_client_", "worst-client {}", lambda e: measure.worst(of_clients(e)), known),
        made("client_gap_", "gap in {} between clients", lambda e: measure.gap(of_clients(e)), known,
             higher_is_better=False),
    ]  # fmt: skip


def _client_percentile(percent: float) -> Compute:
    def compute(evaluation: Evaluation) -> Any:
        accuracies = evaluation.client_accuracies
        if not accuracies.size:
            return math.nan  # private clients do not report them
        if np.isnan(accuracies).all():
            raise DataError("no client has a class of the test set, so client accuracies cannot be computed")
        if accuracies.ndim == 1:
            return float(np.percentile(accuracies[~np.isnan(accuracies)], percent))
        return np.nanpercentile(accuracies, percent, axis=-1)

    return compute


def _recall(evaluation: Evaluation) -> Floats:
    return measures.recall(evaluation.counts)


_TABLE: Sequence[Metric] = (
    Metric("accuracy", "accuracy", lambda e: measures.accuracy(e.counts), compared=True),
    Metric("balanced_accuracy", "balanced accuracy", lambda e: np.nanmean(_recall(e), axis=-1)),
    Metric("loss", "loss", lambda e: e.loss, unit="", higher_is_better=False),
    Metric("recall", "recall", _recall, title="recall of each class", per="class"),
    Metric("worst_class_recall", "worst-class recall", lambda e: np.nanmin(_recall(e), axis=-1), compared=True),
    Metric("worst_client_accuracy", "worst-client accuracy", _client_percentile(0), compared=True),
    Metric("client_accuracy_p10", "10 % of clients", _client_percentile(10), "10th percentile of clients' accuracies"),
    Metric("client_accuracy_median", "median client", _client_percentile(50), "median of clients' accuracies"),
    Metric("client_accuracy_max", "best client", _client_percentile(100), "accuracy of the best client"),
)

METRICS = {each.name: each for each in _TABLE}
"""The metrics of every run, by name. `recall` has one number per class, the others are single numbers."""

CHOICES = {each.name: each for measure in MEASURES for each in forms(measure) if each.name not in METRICS}
"""Further metrics by name, for `--metrics`: the forms of the measures."""

COMPARED = tuple(each for each in _TABLE if each.compared)
"""The metrics that tables and charts show for every run."""

LEADING = tuple(
    METRICS[name] for name in ("balanced_accuracy", "worst_class_recall", "accuracy", "worst_client_accuracy")
)
"""The metrics that tables show if classes are imbalanced. Accuracy says little then, so it is not the first."""

IMBALANCE = 1.5
"""Ratio of the largest to the smallest class of the test set from which classes count as imbalanced."""


def is_imbalanced(confusion: NDArray[Any]) -> bool:
    """Whether the classes of the test set differ much in size, from the confusion matrix."""
    sizes = confusion.sum(-1) if confusion.ndim == 2 else np.zeros(0)
    sizes = sizes[sizes > 0]
    return len(sizes) > 1 and bool(sizes.max() >= IMBALANCE * sizes.min())


def compared(imbalanced: bool) -> Sequence[Metric]:
    """Return the metrics that tables show for every run, the one to judge by first."""
    return LEADING if imbalanced else COMPARED


def single(metrics: Sequence[Metric]) -> dict[str, Metric]:
    """Return those metrics that are one number, by name: runs can be judged by them."""
    return {each.name: each for each in metrics if not each.per}
