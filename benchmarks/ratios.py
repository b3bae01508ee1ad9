"""Ratios of timings: how many times longer a contender takes than the fastest stacked FedAvg, turn by turn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any


@dataclass(frozen=True)
class Row:
    """A contender's median seconds per round, and its ratios: the median, the least and the greatest."""

    contender: str
    seconds: float
    ratio: float
    least: float
    greatest: float

    @property
    def faster(self) -> str:
        """The ratio with its range."""
        return f"{self.ratio:.2f} ({self.least:.2f} to {self.greatest:.2f})"


def rows(result: Mapping[str, Any]) -> list[Row]:
    """Return a row for each contender of a workload, the fastest first.

    Contenders are compared within a turn, because other programs on the machine slow all of them down in it.
    """
    seconds: Mapping[str, list[float]] = result["seconds"]
    own = min((name for name in seconds if name.startswith("fedavg stacked")), key=lambda name: median(seconds[name]))
    found = []
    for contender, times in seconds.items():
        ratios = [theirs / ours for theirs, ours in zip(times, seconds[own], strict=True)]
        found.append(Row(contender, median(times), median(ratios), min(ratios), max(ratios)))
    return sorted(found, key=lambda row: row.seconds)
