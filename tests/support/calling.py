"""Calling the command line as a user does, without starting a process."""

from __future__ import annotations

import pytest

from fedsat.cli import main

SMALL = "--clients 30 --per-round 4 --workers 3 --rounds 3 --epochs 1 --lr 0.05 --classes-per-client 3".split()


def fedsat(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of a call."""
    with pytest.raises(SystemExit) as end:
        main(list(arguments))
    captured = capsys.readouterr()
    code = end.value.code
    assert isinstance(code, int)
    return code, captured.out, captured.err
