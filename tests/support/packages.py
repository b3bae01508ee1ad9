"""Packages that offer parts, as pip would install them: a folder on Python's path with a `dist-info`."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from fedsat.entry_points import offers


@contextmanager
def installed(folder: Path, name: str, groups: Mapping[str, Mapping[str, str]]) -> Iterator[None]:
    """Make `folder`, which holds the modules, look like the place where the package `name` is installed."""
    info = folder / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n", encoding="utf-8")
    lines = [
        f"[{group}]\n" + "".join(f"{key} = {at}\n" for key, at in points.items()) for group, points in groups.items()
    ]
    (info / "entry_points.txt").write_text("\n".join(lines), encoding="utf-8")
    before = set(sys.modules)
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    offers.cache_clear()
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        offers.cache_clear()
        for module in set(sys.modules) - before:
            if any(str(folder) in path for path in _places(module)):
                del sys.modules[module]


def _places(module: str) -> list[str]:
    found = sys.modules[module]
    return [*getattr(found, "__path__", ()), getattr(found, "__file__", None) or ""]
