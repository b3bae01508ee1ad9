"""Our own two studies: the choice of FedSat's defaults, and its options one by one.

A variant is written as a method followed by settings, such as `fedprox mu=0.1`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedsat.experiment.settings import parse_value
from fedsat.models import models

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
    "fedsat lengthen=3.0",
    *(f"fedsat objective=psl-distilled distillation={value}" for value in (0.1, 1.0)),
    "fedsat objective=psl-distilled distilled=others temperature=3.0",
    "fedsat inertia=0.5",
    "fedsat norm=group",
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
"""The variants from which FedSat's defaults are chosen, on seeds that no table uses. ε₂ = 4 was chosen first."""


def fits(variant: str, panel: Mapping[str, Any]) -> bool:
    """Whether a variant can be run in a panel; only some networks have norms."""
    return "norm=" not in variant or "norm" in models.options(panel["model"])


def read_variant(label: str) -> tuple[str, list[tuple[str, Any]]]:
    """Return the method and the settings of a variant."""
    method, *settings = label.split()
    pairs = [text.partition("=") for text in settings]
    return method, [(key, parse_value(value)) for key, _, value in pairs]
