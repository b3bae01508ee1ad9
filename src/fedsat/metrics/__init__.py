"""Everything measured: additive confusion counts and what is computed from them."""

from fedsat.metrics.counts import (
    Assessment,
    ClassCounts,
    ClientAccuracy,
    Evaluation,
    Floats,
    confusion_counts,
    expected_accuracy,
    rounds_to_target,
    share,
    spread,
)

__all__ = [
    "Assessment",
    "ClassCounts",
    "ClientAccuracy",
    "Evaluation",
    "Floats",
    "confusion_counts",
    "expected_accuracy",
    "rounds_to_target",
    "share",
    "spread",
]
