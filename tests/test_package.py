"""What importing the package and starting the program do to the process."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import fedsat


def run(code: str, spinning: str | None = None) -> str:
    """The output of `code` in a new process."""
    others = {key: value for key, value in os.environ.items() if key != "GOMP_SPINCOUNT"}
    environment = others if spinning is None else {**others, "GOMP_SPINCOUNT": spinning}
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    ).stdout


def test_importing_loads_no_torch_and_sets_no_variable() -> None:
    code = (
        "import os, sys; before = dict(os.environ); import fedsat; print('torch' in sys.modules, os.environ == before)"
    )
    assert run(code) == "False True\n"


@pytest.mark.parametrize(("given", "expected"), [(None, "10000"), ("7", "7")])
def test_the_command_line_bounds_waiting_threads_before_torch_is_loaded(given: str | None, expected: str) -> None:
    code = "import os, sys, fedsat.cli; print('torch' in sys.modules, os.environ['GOMP_SPINCOUNT'])"
    assert run(code, given) == f"False {expected}\n"


def test_names_are_found_in_any_order() -> None:
    for first in ("report", "run", "Comparison", "data"):
        code = f"import fedsat; fedsat.{first}; print(callable(fedsat.report), fedsat.data.load.__name__)"
        assert run(code) == "True load\n"


def test_every_name_exists_and_others_do_not() -> None:
    assert all(hasattr(fedsat, name) for name in fedsat.__all__)
    assert dir(fedsat) == fedsat.__all__
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        fedsat.nothing  # noqa: B018
