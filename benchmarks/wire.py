"""Bytes sent in a round with real nodes, for each method and model: the table in docs/measurements/flower.md.

    python benchmarks/wire.py                 (or: python benchmarks/wire.py resnet18)

Counts the bytes of the messages' contents in a round with nodes in this process: 4 of 6 clients are sampled, and each
model is evaluated by the client and two workers.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import fedsat
from fedsat.algorithms import algorithms
from fedsat.flower.agreement import Agreement
from fedsat.flower.in_process import InProcessNodes
from fedsat.flower.server import prepare
from fedsat.flower.terms import Terms

CLIENTS, SAMPLED, WORKERS = 6, 4, 3
MODELS = {"mlp": (1, 28, 28), "lenet5": (1, 28, 28), "resnet8": (3, 32, 32), "resnet18": (3, 32, 32)}
"""Each model with the shape of its images."""
CLASSES = 10


def main() -> None:
    """Print a table of bytes per sampled client for all methods, and the bytes of workers and evaluation."""
    models = sys.argv[1:] or ["mlp", "lenet5", "resnet8"]
    with tempfile.TemporaryDirectory() as folder:
        for name in models:
            write_images(Path(folder) / name, MODELS[name])
        print("| method | " + " | ".join(f"{name} down / up" for name in models) + " |")
        print("|---|" + "---|" * len(models))
        for method in algorithms:
            cells = [per_client(second_round(Path(folder) / name, name, method)) for name in models]
            print(f"| `{method}` | " + " | ".join(cells) + " |", flush=True)
        print()
        for name in models:
            line = second_round(Path(folder) / name, name, "fedsat")
            print(f"{name}: workers {line['bytes_workers']:,} bytes, evaluation {line['bytes_evaluate']:,} bytes")


def second_round(folder: Path, model: str, method: str) -> dict[str, Any]:
    """Return the record of the second round, which contains messages of every kind."""
    settings = {"clients": CLIENTS, "per_round": SAMPLED, "workers": WORKERS, "rounds": 2, "epochs": 1, "batch_size": 4}
    config = fedsat.configure(dataset=str(folder), partition="iid", model=model, algorithm=method, lr=1e-4, **settings)
    agreement = folder.with_suffix(".toml")
    agreement.write_text(Agreement.covering(config).to_toml())
    share = {"dataset": str(folder), "agreement": str(agreement)}
    nodes = [{**share, "partition-id": client} for client in range(CLIENTS)]
    run = prepare(InProcessNodes(*nodes), config, Terms())
    run.run_round()
    return run.run_round()


def per_client(line: dict[str, Any]) -> str:
    """Return the bytes of one sampled client for a table's cell, without what workers download."""
    return f"{size((line['bytes_down'] - line['bytes_workers']) / SAMPLED)} / {size(line['bytes_up'] / SAMPLED)}"


def size(count: float) -> str:
    """Format a number of bytes."""
    return f"{count / 1e6:.2f} MB" if count >= 1e6 else f"{count / 1e3:.0f} kB"


def write_images(folder: Path, shape: tuple[int, ...]) -> None:
    """Write a few noisy images of each class."""
    folder.mkdir()
    draw = np.random.default_rng(0)
    for prefix in ("", "test_"):
        np.save(folder / f"{prefix}images.npy", draw.integers(0, 256, (CLASSES * 3, *shape), dtype=np.uint8))
        np.save(folder / f"{prefix}labels.npy", np.arange(CLASSES * 3) % CLASSES)


if __name__ == "__main__":
    main()
