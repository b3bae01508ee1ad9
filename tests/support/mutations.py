"""Random changes of files, and the effort of the fuzz tests.

A test makes all draws before it does anything that may fail. After an error before or between draws, hypothesis reports
only that the data depend on something outside (FlakyStrategyDefinition).
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from fedsat.errors import FedsatError

T = TypeVar("T")
EFFORT = int(os.environ.get("FEDSAT_FUZZ", "0"))
"""If it is unset, tests try the same few examples each time. FEDSAT_FUZZ=20 tries 20 times as many, different ones."""


def tries(examples: int) -> settings:
    """Return the settings of a fuzz test with this number of examples."""
    return settings(
        max_examples=examples * max(1, EFFORT),
        derandomize=not EFFORT,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )


def refused_or(action: Callable[[], T]) -> T | None:
    """Return the result of `action`, or None if it is refused with a reason. Other errors and hangs are failures."""
    try:
        with within(60):
            return action()
    except FedsatError as error:
        if not str(error):
            raise AssertionError("refused without a reason") from error
        return None


@contextmanager
def within(seconds: int) -> Iterator[None]:
    """Fail if the block hangs."""

    def give_up(*_: object) -> None:
        raise AssertionError(f"no end after {seconds} s")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@st.composite
def mutated(draw: st.DrawFn, content: bytes) -> bytes:
    """Return `content` after a few random changes: bytes changed, removed, inserted, repeated, or the end removed."""
    changed = bytearray(content)
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, len(changed)))
        length = draw(st.integers(1, 12) | st.integers(1, max(1, len(changed))))
        kind = draw(st.sampled_from(["set", "cut", "put", "repeat", "end"]))
        if kind == "set":
            new = draw(
                st.binary(min_size=1, max_size=8) | st.sampled_from([b"\x00", b"\xff" * 4, b"-1", b"nan", b"9" * 25])
            )
            changed[place : place + len(new)] = new
        elif kind == "cut":
            del changed[place : place + length]
        elif kind == "put":
            changed[place:place] = draw(st.binary(min_size=1, max_size=12))
        elif kind == "repeat":
            changed[place:place] = changed[place : place + min(length, 1000)]
        else:
            del changed[place:]
    return bytes(changed)


VALUES = (
    '-1 0 1e400 nan -inf true "" "x" "../x" [] [1,-2] {} 99999999999999999999 2026-01-01 [[]] {name=3} "a:b"'.split()
)


@st.composite
def mutated_text(draw: st.DrawFn, content: str) -> str:
    """Lines of `content` left out, repeated, exchanged, or given another value."""
    lines = content.splitlines()
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, len(lines) - 1)) if lines else 0
        kind = draw(st.sampled_from(["drop", "repeat", "swap", "value", "name", "text"]))
        if not lines:
            break
        if kind == "drop":
            del lines[place]
        elif kind == "repeat":
            lines.insert(draw(st.integers(0, len(lines))), lines[place])
        elif kind == "swap":
            other = draw(st.integers(0, len(lines) - 1))
            lines[place], lines[other] = lines[other], lines[place]
        elif kind == "value":
            lines[place] = lines[place].partition("=")[0] + "= " + draw(st.sampled_from(VALUES))
        elif kind == "name":
            lines[place] = (
                draw(st.sampled_from(["name", "lr", "algorithm", "objective", "path"]))
                + " ="
                + lines[place].partition("=")[2]
            )
        else:
            lines[place] = draw(st.text(max_size=20))
    return "\n".join(lines) + "\n"
