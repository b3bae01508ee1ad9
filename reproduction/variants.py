"""Our own two studies besides the paper's: each baseline over its authors' grid, and FedSat's options one by one.

A variant is written as a method followed by settings, such as `fedprox mu=0.1`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import tomli_w

from fedsat.experiment.settings import parse_value

if TYPE_CHECKING:
    from reproduction.results import Result

GRIDS: dict[str, tuple[str, tuple[Any, ...]]] = {
    "fedprox": ("mu", (0.001, 0.01, 0.1, 1.0)),
    "moon": ("mu", (0.1, 1.0, 5.0, 10.0)),
    "scaffold": ("controls", ("I", "II")),
    "fedlc": ("objective.tau", (0.1, 0.5, 1.0)),
    "fedavgm": ("momentum", (0.7, 0.9, 0.97, 0.99, 0.997)),
    "fedlada": ("epsilon", (1e-8, 1e-3, 1e-2)),
    "elastic": ("mu", (0.9, 0.95)),
    "feddyn": ("alpha", (0.001, 0.01, 0.1)),
    "fedsat:paper": ("weighting.sigma", (0.7, 1.0, 1.5, 2.0, 1000.0)),
}
"""The values that the authors of each method try, or those of public implementations if the authors give none. FedSat
is not tuned: its defaults are used everywhere. The paper leaves σ open, so `fedsat:paper` is tuned like a baseline."""

TUNING = [f"{method} {key}={value}" for method, (key, values) in GRIDS.items() for value in values]
"""The variants of the tuning."""

DEFAULTS = [
    "fedsat",
    "fedavg",
    "scaffold",
    *(f"fedsat-{parts}" for parts in ("psl", "pwa", "correction", "psl-pwa")),
    *(f"fedsat gamma={value}" for value in (0.5, 0.75, 1.0)),
    *(f"fedsat inertia={value}" for value in (0.5, 0.75)),
    *(f"fedsat sigma={value}" for value in (1.0, 1.5, 1000.0)),
    *(f"fedsat min_effective={value}" for value in (0.0, 0.5, 1.0)),
    "fedsat priority=hard",
    "fedsat weights=product",
    "fedsat fnr=standard",
    "fedsat over=all",
    "fedsat source=evaluation",
    *(f"fedsat epsilon2={value}" for value in (1.5, 2.0)),
]
"""FedSat with one of its options changed, and the methods that it is compared with."""


CHOICE = [
    "fedsat",
    *(
        " ".join(("fedsat", *setting, "epsilon2=2.0"))
        for setting in (
            (),
            *((f"tau={value}",) for value in (0.0, 0.5, 1.5)),
            ("inertia=0.5",),
            *((f"server_lr={value}",) for value in (0.5, 1.5, 2.0)),
        )
    ),
    "fedsat-pwa epsilon2=2.0",
    "fedsat-psl",
    "fedavg",
    "scaffold",
    "feddyn",
]
"""The variants among which FedSat's defaults are chosen, on seeds that no table uses. ε₂ = 4 was chosen first."""


def read_variant(label: str) -> tuple[str, list[tuple[str, Any]]]:
    """Return the method and the settings of a variant."""
    method, *settings = label.split()
    pairs = [text.partition("=") for text in settings]
    return method, [(key, parse_value(value)) for key, _, value in pairs]


def best_variants(results: Iterable[Result]) -> dict[str, dict[str, dict[str, Any]]]:
    """Return, by dataset and method, the settings with the highest mean accuracy of the last ten rounds."""
    found: dict[tuple[str, str], list[float]] = {}
    for result in results:
        label = result.line["contender"]
        if not result.line["extra"] and "," not in label:  # only the paper's protocol and the global model
            dataset = result.line["setting"].partition(",")[0]
            found.setdefault((dataset, label), []).append(result.number("accuracy_last_ten"))
    best: dict[tuple[str, str], tuple[float, dict[str, Any]]] = {}
    for (dataset, label), accuracies in found.items():
        (method, settings), mean = read_variant(label), sum(accuracies) / len(accuracies)
        if method in GRIDS and mean > best.get((dataset, method), (-1.0, {}))[0]:
            best[dataset, method] = mean, dict(settings)
    chosen: dict[str, dict[str, dict[str, Any]]] = {}
    for (dataset, method), (_, options) in sorted(best.items()):
        chosen.setdefault(dataset, {})[method] = options
    return chosen


HEAD = """\
# Options chosen for each method on each dataset from the grid of its authors: those with the best mean accuracy of the
# last ten rounds in one setting (a cell of table-lsmc), with a seed that no table uses. Written by
# `python -m reproduction tune`. Methods that are not listed use their defaults.
"""


def tuned_text(chosen: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> str:
    """Return the chosen options as the text of `tuned.toml`."""
    return f"{HEAD}\n{tomli_w.dumps(chosen)}"
