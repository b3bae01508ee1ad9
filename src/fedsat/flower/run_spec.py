"""What every message of the server says about the run that it belongs to."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flwr.app import RecordDict

from fedsat.flower.records import HEAD, MessageError, clean

RUN_ID = re.compile("(?:[0-9a-f]{32})?")

LONGEST_RUN = 2**22
"""Largest number of characters of a run's settings, class names and schema."""


@dataclass(frozen=True)
class RunSpec:
    """What every node needs to know about the run: its settings, the classes, and how samples are normalised."""

    settings: Mapping[str, Any]
    """The configuration as nested plain values (`Config.table`)."""
    class_names: tuple[str, ...]
    held_out: bool
    """Whether the global model is tested on samples that nodes hold out, instead of the server's test set."""
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    mean_samples: float = 0.0
    """n/N, the mean number of samples per client; 0 before the nodes have introduced themselves."""
    schema: str = ""
    """The schema of a table as JSON; empty for other data."""
    id: str = ""
    """The run's own ID, 32 hexadecimal digits. It stays the same when the server or a node starts again."""
    most_samples: int = 0
    """The most samples that a client counts with; 0: no limit."""

    def text(self) -> str:
        """Return the spec as one line of JSON; numbers are exact."""
        return json.dumps(vars(self), sort_keys=True)

    @staticmethod
    def of(text: str) -> RunSpec:
        """Read what `text` returned."""
        spec = json.loads(text)
        mean, std = (_finite(spec[key]) for key in ("mean", "std"))
        if len(mean) != len(std) or not all(one > 0 for one in std):
            raise ValueError("the mean and the standard deviation do not belong together")
        if not RUN_ID.fullmatch(spec["id"]):
            raise ValueError("the run's ID is not 32 hexadecimal digits")
        return RunSpec(
            dict(spec["settings"]),
            tuple(str(name) for name in list(spec["class_names"])),
            bool(spec["held_out"]),
            mean,
            std,
            mean_samples=_finite([spec["mean_samples"]])[0],
            schema=str(spec["schema"]),
            id=spec["id"],
            most_samples=int(spec["most_samples"]),
        )


def _finite(numbers: list[float]) -> tuple[float, ...]:
    found = tuple(float(number) for number in numbers)
    if not all(map(math.isfinite, found)):
        raise ValueError("a number is not finite")
    return found


def run_of(records: RecordDict) -> RunSpec:
    """Return the run that a request belongs to; nothing else of the message is decoded."""
    try:
        text = str(records.config_records[HEAD]["run"])
        if len(text) > LONGEST_RUN:
            raise ValueError(f"it has {len(text):,} characters, more than {LONGEST_RUN:,}")
        return RunSpec.of(text)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise MessageError(f"the request has no readable run: {clean(str(error))}") from error
