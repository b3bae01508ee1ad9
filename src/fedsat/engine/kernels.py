"""Kernels written in Triton, which comes with torch's CUDA builds and is missing elsewhere."""

from __future__ import annotations

import importlib
from functools import cache
from types import ModuleType


@cache
def triton_module(name: str) -> ModuleType | None:
    """One of our modules of Triton kernels, where Triton is installed."""
    try:
        return importlib.import_module(f"fedsat.engine.{name}")
    except ImportError:
        return None
