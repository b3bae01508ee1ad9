"""Calling the command line as a user does, without starting a process."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fedsat.cli import main, run_app
from reproduction.commands import app

SMALL = "--clients 30 --per-round 4 --workers 3 --rounds 3 --epochs 1 --lr 0.05 --classes-per-client 3".split()


def fedsat(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of `fedsat ...`."""
    return _called(capsys, lambda: main(list(arguments)))


def reproduction(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of `python -m reproduction ...`."""
    return _called(capsys, lambda: run_app(app, "python -m reproduction", list(arguments)))


def _called(capsys: pytest.CaptureFixture[str], program: Callable[[], None]) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as end:
        program()
    captured = capsys.readouterr()
    code = end.value.code
    assert isinstance(code, int)
    return code, captured.out, captured.err
