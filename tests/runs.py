"""Small runs that tests share, and what must be equal of two of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import fedsat

TINY: dict[str, Any] = {
    "clients": 12, "per_round": 4, "workers": 3, "rounds": 6, "epochs": 1, "batch_size": 32, "lr": 0.05,
    "classes_per_client": 3, "hidden": [8], "evaluate_every": 2, "checkpoint_every": 2,
}  # fmt: skip


def killed_after(rounds: int, folder: Path, **settings: Any) -> None:
    """Begin a run and let it end as by SIGKILL: nothing is written once the last round was."""
    run = fedsat.prepare(fedsat.configure(**{**TINY, **settings}), folder)
    for _ in range(rounds):
        run.play()


def results(folder: Path) -> dict[str, Any]:
    """Everything that a run left, but for times and for the command and the machine that it was made with."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    summary = json.loads((folder / "summary.json").read_text())
    for table in (*lines, summary):
        del table["seconds"]
    del summary["made_with"]
    whole = ("config.toml", "model.safetensors", "best.safetensors")
    return {"metrics": lines, "summary": summary, **{name: (folder / name).read_bytes() for name in whole}}
