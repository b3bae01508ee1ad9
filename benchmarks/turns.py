"""How a peer is told to play a round and says how long it took: lines on stdin and stdout among the peer's own."""

from __future__ import annotations

import sys
import time

MARK = "@turn"


class Turns:
    """The peer's side."""

    def __init__(self, name: str) -> None:
        """`name` says what plays, with its version; printed when the peer is ready."""
        self._began = self._seconds = 0.0
        print(MARK, name, flush=True)

    def wait(self) -> None:
        """Wait for the next turn; raises EOFError when there is none."""
        if not sys.stdin.readline():
            raise EOFError
        self._began = time.perf_counter()

    def done(self) -> None:
        """The round is over."""
        self._seconds = time.perf_counter() - self._began

    def report(self, test_loss: float) -> None:
        """Say how long the round took, and what it led to."""
        print(MARK, self._seconds, test_loss, flush=True)
