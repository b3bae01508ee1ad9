"""The cost of checkpoints: their share of a run's time, for methods without and with a state for every client.

    python benchmarks/checkpoint.py             (about five minutes; needs `fedsat data get mnist`)

Each case is run twice, with the default frequency of checkpoints and with one exactly every ten rounds.
The share is the time spent writing, including the last checkpoint, divided by the time of the run without its set-up.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import fedsat

CASES: dict[str, dict[str, Any]] = {
    "built-in digits, MLP": {"rounds": 60},
    "MNIST, MLP": {"dataset": "mnist", "rounds": 20},
    "MNIST, LeNet-5": {"dataset": "mnist", "model": "lenet5", "rounds": 10},
    "MNIST, MLP, 10,000 clients, 100 per round": {
        "dataset": "mnist", "rounds": 40, "clients": 10_000, "per_round": 100, "partition": "iid", "workers": 5,
    },
}  # fmt: skip
METHODS = ("fedavg", "scaffold", "fedsat")


def measure(settings: dict[str, Any], folder: Path) -> dict[str, float]:
    """Train a run and return what its checkpoints cost."""
    run = fedsat.prepare(fedsat.configure(**settings), folder)
    assert run.checkpoints is not None
    write, folder = run.checkpoints.write, run.checkpoints.folder
    spent: list[float] = []
    sizes: dict[int, int] = {}

    def timed(checkpoint: Any) -> None:
        began = time.perf_counter()
        write(checkpoint)
        spent.append(time.perf_counter() - began)
        sizes[checkpoint.state.training.rounds] = max(path.stat().st_size for path in folder.iterdir())

    run.checkpoints.write = timed  # type: ignore[method-assign]
    began = time.perf_counter()
    fedsat.train(run)
    total = time.perf_counter() - began
    return {
        "total": total,
        "checkpoints": len(sizes),
        "MB": max(sizes.values(), default=0) / 1e6,
        "part": sum(spent) / total,
    }


def main() -> None:
    """Print a table with a row for each case."""
    print("| case | method | checkpoint size | run | by default | exactly every 10 |")
    print("|---|---|---|---|---|---|")
    for case, settings in CASES.items():
        for method in METHODS:
            cells = []
            for every in (None, 10):
                with tempfile.TemporaryDirectory(prefix="fedsat-checkpoint-") as folder:
                    took = measure({**settings, "algorithm": method, "checkpoint_every": every}, Path(folder) / "run")
                cells.append(f"{took['checkpoints']} written, {took['part']:.1%}")
            size = f"{took['MB']:,.1f} MB"
            print(f"| {case} | {method} | {size} | {took['total']:.0f} s | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
