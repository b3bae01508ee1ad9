"""What importing the package does to the process."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


@pytest.mark.parametrize(("given", "expected"), [(None, "10000"), ("7", "7")])
def test_waiting_threads_are_bounded_before_torch_is_loaded(given: str | None, expected: str) -> None:
    code = """
import builtins, os, sys
load, seen = builtins.__import__, []
def watched(name, *rest):
    if name == "torch" and "torch" not in sys.modules:
        seen.append(os.environ.get("GOMP_SPINCOUNT"))
    return load(name, *rest)
builtins.__import__ = watched
import fedsat
print(seen[0])
"""
    others = {key: value for key, value in os.environ.items() if key != "GOMP_SPINCOUNT"}
    environment = others if given is None else {**others, "GOMP_SPINCOUNT": given}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == f"{expected}\n"
