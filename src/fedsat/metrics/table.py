"""The table of metrics: what is computed from an evaluation, and how it is displayed.

Runs, comparisons, figures and the report page use this table. A metric of your own is a function of an `Evaluation`:

    @fedsat.metric(label="AUPRC")
    def auprc(evaluation):
        return average_precision_score(np.eye(10)[evaluation.labels], evaluation.scores)

    fedsat.run(metrics=[auprc])        # or metrics = ["mymodule:auprc"] in config.toml
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from fedsat.entry_points import load_offer, offers
from fedsat.errors import DataError, UsageError
from fedsat.metrics.evaluation import Evaluation
from fedsat.options import import_object

Unit = Literal["%", ""]
Compute = Callable[[Evaluation], Any]


@dataclass(frozen=True)
class Metric:
    """A number, or one number per class, computed from an evaluation."""

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
        return f"{100 * value:.{digits}f}" if self.unit == "%" else f"{value:.{digits + 2}f}"

    def description(self) -> dict[str, Any]:
        """Return the description that reports need."""
        return {
            "name": self.name, "label": self.label, "unit": self.unit, "higher_is_better": self.higher_is_better,
        }  # fmt: skip


def metric(
    *, label: str = "", unit: Unit = "%", higher_is_better: bool = True, compared: bool = True
) -> Callable[[Compute], Metric]:
    """Describe a metric function (a decorator). Without it, the label is the name and the value has no unit."""

    def describe(compute: Compute) -> Metric:
        name = getattr(compute, "__name__", "metric")
        text = label or name.replace("_", " ")
        return Metric(name, text, compute, unit=unit, higher_is_better=higher_is_better, compared=compared)

    return describe


def find_metrics(paths: Iterable[str]) -> tuple[Metric, ...]:
    """Return the metrics that paths point to: `module:name`, or the name under which a package offers one."""
    found: dict[str, Metric] = {}
    for path in paths:
        offer = offers("metrics").get(path)
        if offer is None and ":" not in path:
            raise UsageError(f"metrics has {path!r}; a metric of your own is written module:name")
        given = import_object("metric", path) if offer is None else load_offer("metric", offer)
        if not isinstance(given, Metric):
            if not callable(given):
                raise UsageError(f"{path} cannot be used as a metric: it is not a function")
            given = metric(unit="")(given)
        if given.name in METRICS or given.name in found:
            raise UsageError(f"{path}: there is already a metric called {given.name}; give the function another name")
        found[given.name] = given
    return tuple(found.values())


def metric_path(given: Any) -> Any:
    """Return the `module:name` of a metric given as an object, as stored in configurations."""
    function = given.compute if isinstance(given, Metric) else given
    return f"{function.__module__}:{function.__qualname__}" if callable(function) else given


def measure(evaluation: Evaluation, own: Iterable[Metric] = ()) -> dict[str, Any]:
    """Compute every metric of the table and the user's own metrics; undefined values are None (null in JSON)."""
    values = {each.name: _plain(each(evaluation)) for each in METRICS.values()}
    for each in own:
        value = each(evaluation)
        if not isinstance(value, int | float | np.number | np.ndarray) or np.ndim(value) != 0:
            raise UsageError(f"the metric {each.name} returned {value!r}; it must return a number")
        values[each.name] = _plain(float(value))
    return values


def _plain(value: Any) -> Any:
    if np.ndim(value) == 0:
        return float(value) if np.isfinite(value) else None
    return known(value)


def known(values: Iterable[float]) -> list[float | None]:
    """Return numbers that JSON can represent: undefined ones are None (null in JSON)."""
    return [None if np.isnan(value) else float(value) for value in values]


def _client_percentile(percent: float) -> Compute:
    def compute(evaluation: Evaluation) -> float:
        accuracies = evaluation.client_accuracies[~np.isnan(evaluation.client_accuracies)]
        if not len(accuracies):
            raise DataError("no client has a class of the test set, so client accuracies cannot be computed")
        return float(np.percentile(accuracies, percent))

    return compute


_TABLE: Sequence[Metric] = (
    Metric("accuracy", "accuracy", lambda e: e.accuracy, compared=True),
    Metric("balanced_accuracy", "balanced accuracy", lambda e: e.balanced_accuracy),
    Metric("loss", "loss", lambda e: e.loss, unit="", higher_is_better=False),
    Metric("recall", "recall", lambda e: e.recall, title="recall of each class"),
    Metric("worst_class_recall", "worst-class recall", lambda e: np.nanmin(e.recall), compared=True),
    Metric("worst_client_accuracy", "worst-client accuracy", _client_percentile(0), compared=True),
    Metric("client_accuracy_p10", "10 % of clients", _client_percentile(10), "10th percentile of clients' accuracies"),
    Metric("client_accuracy_median", "median client", _client_percentile(50), "median of clients' accuracies"),
    Metric("client_accuracy_max", "best client", _client_percentile(100), "accuracy of the best client"),
)

METRICS = {each.name: each for each in _TABLE}
"""The metrics of every run, by name. `recall` has one number per class, the others are single numbers."""

COMPARED = tuple(each for each in _TABLE if each.compared)
"""The metrics that tables and charts show for every run."""
