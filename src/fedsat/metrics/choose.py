"""The metrics that a run records: those of the table, built-in ones by name, and the user's own.

A metric of your own is a function of an `Evaluation`:

    @fedsat.metric(label="AUPRC")
    def auprc(evaluation):
        return average_precision_score(np.eye(10)[evaluation.labels], evaluation.scores)

    fedsat.run(metrics=[auprc])        # or metrics = ["mymodule:auprc"] in config.toml
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from functools import reduce
from operator import or_
from typing import Any, Literal

import numpy as np

from fedsat.entry_points import load_offer, offers
from fedsat.errors import UsageError, unknown
from fedsat.metrics.evaluation import NO_DETAIL, Detail, Evaluation
from fedsat.metrics.table import CHOICES, METRICS, Compute, Metric, Unit, single
from fedsat.registry import import_object


def metric(
    *,
    label: str = "",
    unit: Unit = "%",
    higher_is_better: bool = True,
    compared: bool = True,
    per: Literal["", "class", "client"] = "",
) -> Callable[[Compute], Metric]:
    """Describe a metric function (a decorator). Without it, the label is the name and the value has no unit.

    With `per="class"` or `per="client"`, the function returns one number for each class or client.
    """

    def describe(compute: Compute) -> Metric:
        name = getattr(compute, "__name__", "metric")
        text = label or name.replace("_", " ")
        described: dict[str, Any] = {"higher_is_better": higher_is_better, "compared": compared, "per": per}
        return Metric(name, text, compute, unit=unit, **described)

    return describe


def find_metrics(paths: Iterable[str]) -> tuple[Metric, ...]:
    """Return the metrics with these names: built-in ones, those that packages offer, or your own as `module:name`.

    Metrics that every run has are left out.
    """
    found: dict[str, Metric] = {}
    for path in paths:
        given = _find(path)
        if given is METRICS.get(path):
            continue
        if (given.name in METRICS or given.name in CHOICES) and given is not CHOICES.get(path):
            raise UsageError(f"{path}: there is already a metric called {given.name}; give the function another name")
        if given.name in found:
            raise UsageError(f"{path}: there is already a metric called {given.name}; name it only once")
        found[given.name] = given
    return tuple(found.values())


def _find(path: str) -> Metric:
    if path in METRICS or path in CHOICES:
        return METRICS.get(path) or CHOICES[path]
    offer = offers("metrics").get(path)
    if offer is None and ":" not in path:
        near = difflib.get_close_matches(path, [*METRICS, *CHOICES, *offers("metrics")], n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise UsageError(f"unknown metric {path!r}{hint} (see fedsat list metrics; your own are written module:name)")
    given = import_object("metric", path) if offer is None else load_offer("metric", offer)
    if isinstance(given, Metric):
        return given
    if not callable(given):
        raise UsageError(f"{path} cannot be used as a metric: it is not a function")
    return metric(unit="")(given)


def judged_by(setting: str, name: str, chosen: Iterable[Metric]) -> Metric:
    """Return the metric by which a setting judges models: one number that every run records, or that is chosen."""
    known = single([*METRICS.values(), *chosen])
    if name in CHOICES and name not in known and not CHOICES[name].per:
        raise UsageError(f"{setting} is {name!r}, which is not recorded; add it to metrics, as in --metrics {name}")
    if name not in known:
        raise unknown(f"metric of {setting}:", name, known)
    return known[name]


def metric_path(given: Any) -> Any:
    """Return the name of a metric given as an object, as stored in configurations: `module:name`, or its own name."""
    if isinstance(given, Metric) and given is CHOICES.get(given.name):
        return given.name
    function = given.compute if isinstance(given, Metric) else given
    return f"{function.__module__}:{function.__qualname__}" if callable(function) else given


def detail_of(metrics: Iterable[Metric]) -> Detail:
    """Return what has to be counted for these metrics."""
    return reduce(or_, (each.detail for each in metrics), NO_DETAIL)


def measure(evaluation: Evaluation, chosen: Iterable[Metric] = ()) -> dict[str, Any]:
    """Compute every metric of the table and the chosen ones; undefined values are None (null in JSON)."""
    values = {each.name: _plain(each(evaluation)) for each in METRICS.values()}
    return values | {each.name: _plain(_checked(each, each(evaluation))) for each in chosen}


def _checked(metric: Metric, value: Any) -> Any:
    """Return a number, or an array with as many numbers as the metric says."""
    try:
        numbers = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        numbers = np.empty((0, 0))
    if numbers.ndim != (1 if metric.per else 0) or isinstance(value, str | bytes):
        wanted = f"one number per {metric.per}" if metric.per else "a number"
        hint = "" if metric.per or numbers.ndim != 1 else ', or be described by @fedsat.metric(per="class")'
        raise UsageError(f"the metric {metric.name} returned {value!r}; it must return {wanted}{hint}")
    return numbers


def _plain(value: Any) -> Any:
    if np.ndim(value) == 0:
        return float(value) if np.isfinite(value) else None
    return known(value)


def known(values: Iterable[float]) -> list[float | None]:
    """Return numbers that JSON can represent: undefined ones are None (null in JSON)."""
    return [float(value) if np.isfinite(value) else None for value in values]
