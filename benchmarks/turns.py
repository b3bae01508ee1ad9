"""The protocol for asking a peer to run a round and report its time: marked lines on stdin and stdout."""

from __future__ import annotations

import sys
import time

MARK = "@turn"


class Turns:
    """The peer's side."""

    def __init__(self, name: str) -> None:
        """Report that the peer is ready; `name` is its name and version."""
        self._began = self._seconds = 0.0
        print(MARK, name, flush=True)

    def wait(self) -> None:
        """Wait for the next turn; raises EOFError when there is none."""
        if not sys.stdin.readline():
            raise EOFError
        self._began = time.perf_counter()

    def done(self) -> None:
        """Stop the time of the round."""
        self._seconds = time.perf_counter() - self._began

    def report(self, test_loss: float) -> None:
        """Report the time of the round and the test loss."""
        print(MARK, self._seconds, test_loss, flush=True)
