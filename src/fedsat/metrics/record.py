"""The record of a round: one line of `metrics.jsonl`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

Values = dict[str, Any]
"""Metrics by name: numbers, and `recall` as a list; None for undefined values."""


@dataclass
class RoundRecord:
    """The record of a round. Callbacks may add to `metrics` and `extra` before it is written."""

    round: int
    train_loss: float | None
    """Mean training loss of the clients; None if no client responded."""
    clients: list[int]
    """The clients whose updates were aggregated."""
    weights: list[float]
    """Their weights, in the same order."""
    effective_clients: float
    """1/Σϑ²."""
    bytes_down: int
    bytes_up: int
    bytes_workers: int = 0
    """The part of both that is due to workers' evaluations."""
    bytes_evaluate: int | None = None
    """Bytes of the evaluation on real nodes."""
    lr: float | None = None
    """The local learning rate; None if no client responded, or if fedsat 0.1 wrote the record."""
    epsilon: float | None = None
    """ε of the differential privacy spent so far; None without privacy."""
    repeated: int | None = None
    """How often requests to real nodes were repeated, if they were."""
    seconds: dict[str, float] = field(default_factory=dict)
    priority_class: int | None = None
    class_scores: list[float] = field(default_factory=list)
    client_scores: list[float] = field(default_factory=list)
    missing: list[int] = field(default_factory=list)
    """Sampled clients that did not respond."""
    refused: dict[str, str] = field(default_factory=dict)
    """Clients whose updates were refused, with the reasons."""
    refused_workers: dict[str, str] = field(default_factory=dict)
    left_out: list[dict[str, Any]] = field(default_factory=list)
    """Notes about real nodes: stage, client, reason."""
    metrics: Values = field(default_factory=dict)
    """The global model's metrics; empty if the round was not evaluated."""
    validation: Values = field(default_factory=dict)
    """Its metrics on the clients' validation samples; empty without them."""
    models: dict[str, Values] = field(default_factory=dict)
    """The metrics of other models: those that the method reports, and the averaged model."""
    extra: dict[str, Any] = field(default_factory=dict)
    """For callbacks: anything that JSON can hold."""

    @property
    def evaluated(self) -> bool:
        """Whether the round was evaluated."""
        return "accuracy" in self.metrics

    @property
    def worst_class(self) -> int:
        """The class with the lowest recall."""
        return worst_class(self.metrics)

    def to_json(self) -> dict[str, Any]:
        """Return the record as plain values, without empty fields."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: value for name, value in values.items() if name in _ALWAYS or value not in (None, [], {})}

    @staticmethod
    def from_json(line: Mapping[str, Any]) -> RoundRecord:
        """Return the record in a line; lines written by fedsat 0.1 are read as well."""
        if "test_accuracy" in line:
            line = _modern(line)
        given = {each.name: line[each.name] for each in fields(RoundRecord) if each.name in line}
        return RoundRecord(**{"train_loss": None, **given})


_ALWAYS = ("round", "train_loss", "clients", "weights", "effective_clients", "bytes_down", "bytes_up", "bytes_workers",
           "seconds")  # fmt: skip


def worst_class(metrics: Mapping[str, Any]) -> int:
    """The class with the lowest recall."""
    return int(np.nanargmin(np.array(metrics["recall"], dtype=np.float64)))


_OLD = {"test_accuracy": "accuracy", "test_loss": "loss", "worst_recall": "worst_class_recall"}
_OLD_CLIENTS = {"min": "worst_client_accuracy", "p10": "client_accuracy_p10", "median": "client_accuracy_median",
                "max": "client_accuracy_max"}  # fmt: skip


def _modern(line: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a line of fedsat 0.1, which stored metrics at the top level and under other names."""
    models = {name: _modern_metrics(values) for name, values in line.get("models", {}).items()}
    seconds = {"evaluate_workers" if key == "measure" else key: value for key, value in line["seconds"].items()}
    return {**line, "metrics": _modern_metrics(line), "models": models, "seconds": seconds}


def _modern_metrics(line: Mapping[str, Any]) -> Values:
    found = {now: line[old] for old, now in _OLD.items() if old in line}
    found |= {name: line[name] for name in ("balanced_accuracy", "recall") if name in line}
    return found | {now: line["client_accuracy"][old] for old, now in _OLD_CLIENTS.items()}
