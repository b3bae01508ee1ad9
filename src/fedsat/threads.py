"""A bound on how long torch's threads spin."""

from __future__ import annotations

import os


def bound_spinning() -> None:
    """Let torch's threads yield soon when they wait for each other, unless the user has decided otherwise.

    Without a bound they take a core from other processes, and runs on a busy machine stall for minutes
    (docs/concepts/engines.md). The variable takes effect only in processes that have not loaded torch yet.
    """
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
