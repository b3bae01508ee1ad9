"""Names of fedsat 0.1 that are still read, for this release: settings, values and record keys that have new names."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from typing import Any

SETTINGS = {"combination": "aggregator", "algorithms": "methods"}
"""Settings by their last name: old and new."""
VALUES = {
    "fedsat-paper": "fedsat:paper",
    "fedsat-robust": "fedsat:robust",
}
"""Names of presets: old and new."""


def modern_name(key: str) -> str:
    """A setting's name today, whatever part of its path was given."""
    return ".".join(SETTINGS.get(step, step) for step in key.split("."))


def modern_value(key: str, value: Any) -> Any:
    """A setting's value today."""
    if key.rpartition(".")[2] == "client_accuracy" and value == "own":
        return "local"
    return VALUES.get(value, value) if isinstance(value, str) else value


def modern_table(table: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration with today's names, whichever version wrote it."""
    found: dict[str, Any] = {}
    for key, value in table.items():
        found[modern_name(key)] = modern_table(value) if isinstance(value, Mapping) else modern_value(key, value)
    return found


def renamed(table: Mapping[str, Any], prefix: str = "") -> list[str]:
    """What `modern_table` changes, in words."""
    notes: list[str] = []
    for key, value in table.items():
        now = modern_name(key)
        if now != key:
            notes.append(f"{prefix}{key} is now called {prefix}{now}")
        if isinstance(value, Mapping):
            notes += renamed(value, f"{prefix}{now}.")
        elif isinstance(value, str) and modern_value(key, value) != value:
            notes.append(f"{prefix}{now} = {value!r} is now written {modern_value(key, value)!r}")
    return notes


def warn(notes: Iterable[str]) -> None:
    """Name what is called differently now, one warning each."""
    for note in notes:
        warnings.warn(f"{note}; the old name will be refused in the next release", FutureWarning, stacklevel=3)
