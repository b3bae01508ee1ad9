"""fedsat: federated learning for clients with imbalanced, rare and missing classes.

import fedsat

run = fedsat.run(dataset="mnist-mini", algorithm="fedsat", rounds=20)
print(run.summary["accuracy"], run.summary["worst_class_recall"])
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

# Set before torch is loaded. Torch's threads spin while they wait for each other at every operation. Without a bound,
# they take a core from other processes, and runs on a busy machine stall for minutes (docs/measurements/engine.md).
os.environ.setdefault("GOMP_SPINCOUNT", "10000")

from fedsat import data
from fedsat.algorithms import Algorithm, Objective, Weighting
from fedsat.errors import DataError, FedsatError, TrainingError, UsageError
from fedsat.experiment import Callback, Callbacks, Config, Run, load_checkpointed, prepare, train
from fedsat.experiment.config import override
from fedsat.metrics import Evaluation, Metric, RoundRecord, metric, metric_path
from fedsat.version import __version__

__all__ = [
    "Algorithm",
    "Callback",
    "Config",
    "DataError",
    "Evaluation",
    "FedsatError",
    "Metric",
    "Objective",
    "RoundRecord",
    "Run",
    "TrainingError",
    "UsageError",
    "Weighting",
    "__version__",
    "configure",
    "data",
    "load_checkpointed",
    "metric",
    "prepare",
    "resume",
    "run",
    "train",
]


def configure(*, with_parts: Iterable[str] = (), without: Iterable[str] = (), **settings: Any) -> Config:
    """A configuration from settings named as on the command line, for example `lr=0.05` or `gamma=0.5`.

    A part may be given by name, as a table (`partition={"name": "lsmc", "classes_per_client": 2}`), as an
    instance (`algorithm=FedSat(gamma=0.5)`), or, for a model or method of your own, as its class. `metrics` takes
    functions as well as their `module:name`.
    """
    if not isinstance(settings.get("metrics", ""), str):
        settings["metrics"] = [metric_path(each) for each in settings["metrics"]]
    named = [(key, _by_name(value) if isinstance(value, type) else value) for key, value in settings.items()]
    return Config.of(override({}, named, with_parts, without))


def run(*, out: str | Path | None = None, callbacks: Callbacks = (), **settings: Any) -> Run:
    """Train a federation; see `configure` for the settings. Files are written only where `out` says.

    A callback is a `Callback`, or a function that is called with the run and the record after each round.
    """
    return train(prepare(configure(**settings), Path(out) if out is not None else None), callbacks)


def resume(folder: str | Path, *, rounds: int | None = None, callbacks: Callbacks = ()) -> Run:
    """Continue the run in `folder` from its last checkpoint, or to more rounds than it had."""
    return train(load_checkpointed(Path(folder), rounds), callbacks)


def _by_name(part: type) -> str:
    return f"{part.__module__}:{part.__qualname__}"
