"""Small runs that tests share, and a comparison of two of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fedsat
from tests.support.kill import results

__all__ = ["TINY", "killed_after", "results"]

TINY: dict[str, Any] = {
    "clients": 12, "per_round": 4, "workers": 3, "rounds": 6, "epochs": 1, "batch_size": 32, "lr": 0.05,
    "classes_per_client": 3, "hidden": [8], "evaluate_every": 2, "checkpoint_every": 2,
}  # fmt: skip


def killed_after(rounds: int, folder: Path, /, **settings: Any) -> None:
    """Begin a run and end it as if by SIGKILL: nothing is written after the last round."""
    run = fedsat.prepare(fedsat.configure(**{**TINY, **settings}), folder)
    for _ in range(rounds):
        run.run_round()
