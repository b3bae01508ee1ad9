"""fedsat: federated learning for clients with imbalanced, rare and missing classes.

import fedsat

run = fedsat.run(dataset="mnist-mini", algorithm="fedsat", rounds=20)
print(run.summary["accuracy"], run.summary["worst_class_recall"])
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedsat.version import __version__

if TYPE_CHECKING:
    from fedsat import data
    from fedsat.algorithms import Algorithm, Objective, Weighting
    from fedsat.api import compare, configure, load, look, report, resume, run, tune
    from fedsat.data import Dataset
    from fedsat.errors import DataError, FedsatError, TrainingError, UsageError
    from fedsat.experiment import Callback, Config, Run, prepare, restore, train
    from fedsat.metrics import Evaluation, Metric, RoundRecord, metric
    from fedsat.report.side_by_side import Comparison
    from fedsat.report.tuning import Tuning

__all__ = [
    "Algorithm",
    "Callback",
    "Comparison",
    "Config",
    "DataError",
    "Dataset",
    "Evaluation",
    "FedsatError",
    "Metric",
    "Objective",
    "RoundRecord",
    "Run",
    "TrainingError",
    "Tuning",
    "UsageError",
    "Weighting",
    "__version__",
    "compare",
    "configure",
    "data",
    "load",
    "look",
    "metric",
    "prepare",
    "report",
    "restore",
    "resume",
    "run",
    "train",
    "tune",
]

_HOMES = {
    "fedsat.algorithms": ("Algorithm", "Objective", "Weighting"),
    "fedsat.api": ("compare", "configure", "load", "look", "report", "resume", "run", "tune"),
    "fedsat.data": ("Dataset",),
    "fedsat.errors": ("DataError", "FedsatError", "TrainingError", "UsageError"),
    "fedsat.experiment": ("Callback", "Config", "Run", "prepare", "restore", "train"),
    "fedsat.metrics": ("Evaluation", "Metric", "RoundRecord", "metric"),
    "fedsat.report.side_by_side": ("Comparison",),
    "fedsat.report.tuning": ("Tuning",),
}
"""The module that defines each name, imported at the first use of the name: `import fedsat` does not load torch."""


def __getattr__(name: str) -> Any:
    if name == "data":
        return import_module("fedsat.data")
    if name not in __all__:
        raise AttributeError(f"module 'fedsat' has no attribute {name!r}")
    # All names at once, because importing the package `fedsat.report` would hide the function `report`.
    for home, names in _HOMES.items():
        globals().update({each: getattr(import_module(home), each) for each in names})
    return globals()[name]


def __dir__() -> list[str]:
    return __all__
