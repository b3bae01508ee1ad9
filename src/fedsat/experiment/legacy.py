"""Settings and values of fedsat 0.1 that have new names. This release still reads the old ones."""

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
    """Return a setting's current name; any part of its path may be given."""
    return ".".join(SETTINGS.get(step, step) for step in key.split("."))


def modern_value(key: str, value: Any) -> Any:
    """Return a setting's current value."""
    if key.rpartition(".")[2] == "client_accuracy" and value == "own":
        return "local"
    return VALUES.get(value, value) if isinstance(value, str) else value


def modern_table(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration with current names, whichever version wrote it."""
    found: dict[str, Any] = {}
    for key, value in table.items():
        found[modern_name(key)] = modern_table(value) if isinstance(value, Mapping) else modern_value(key, value)
    return found


def renamed(table: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Describe what `modern_table` changes."""
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
    """Issue one warning for each renamed setting."""
    for note in notes:
        warnings.warn(f"{note}; the old name will be refused in the next release", FutureWarning, stacklevel=3)
