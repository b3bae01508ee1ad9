"""Pictures of results, drawn without a screen."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any


def save_curves(runs: Mapping[str, list[dict[str, Any]]], path: Path) -> None:
    """Accuracy and worst-class recall over rounds, one line a method."""
    from matplotlib.figure import Figure  # noqa: PLC0415 (slow to import, seldom needed)

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    panels = figure.subplots(1, 2, sharex=True, sharey=True)
    titles = ("test_accuracy", "accuracy"), ("worst_recall", "recall of the worst class")
    for panel, (key, title) in zip(panels, titles, strict=True):
        for method, metrics in runs.items():
            evaluated = [line for line in metrics if key in line]
            panel.plot(
                [line["round"] for line in evaluated], [100 * line[key] for line in evaluated], label=method, lw=1.8
            )
        panel.set_title(title, loc="left")
        panel.set_xlabel("round")
        panel.set_ylim(0, 100)
        panel.grid(alpha=0.25)
        panel.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("%")
    panels[1].legend(frameon=False, loc="lower right")
    figure.savefig(path, dpi=150)
