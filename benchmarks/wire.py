"""What crosses the wire in a round of real nodes, for each method and model: the table in docs/howto/flower.md.

    python benchmarks/wire.py                 (or: python benchmarks/wire.py resnet18)

Bytes are those of the messages' contents as they are sent, counted while a round is played by nodes in this process:
4 clients called of 6, each model evaluated by the client and two workers.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import fedsat
from fedsat.algorithms import algorithms
from fedsat.flower.in_process import InProcessNodes
from fedsat.flower.server import prepare
from fedsat.flower.terms import Terms

CLIENTS, CALLED, WORKERS = 6, 4, 3
MODELS = {"mlp": (1, 28, 28), "lenet5": (1, 28, 28), "resnet8": (3, 32, 32), "resnet18": (3, 32, 32)}
"""Each model with the images it is made for."""
CLASSES = 10


def main() -> None:
    """Print a table of bytes per called client for all methods, and the workers' and the evaluation's part."""
    models = sys.argv[1:] or ["mlp", "lenet5", "resnet8"]
    with tempfile.TemporaryDirectory() as folder:
        for name in models:
            write_images(Path(folder) / name, MODELS[name])
        print("| method | " + " | ".join(f"{name} down / up" for name in models) + " |")
        print("|---|" + "---|" * len(models))
        for method in algorithms:
            cells = [per_client(play(Path(folder) / name, name, method)) for name in models]
            print(f"| `{method}` | " + " | ".join(cells) + " |", flush=True)
        print()
        for name in models:
            line = play(Path(folder) / name, name, "fedsat")
            print(f"{name}: workers {line['bytes_workers']:,} bytes, evaluation {line['bytes_evaluate']:,} bytes")


def play(folder: Path, model: str, method: str) -> dict[str, Any]:
    """The record of the second round: all messages that there are have been sent once by then."""
    settings = {"clients": CLIENTS, "per_round": CALLED, "workers": WORKERS, "rounds": 2, "epochs": 1, "batch_size": 4}
    config = fedsat.configure(dataset=str(folder), partition="iid", model=model, algorithm=method, lr=1e-4, **settings)
    nodes = [{"dataset": str(folder), "partition-id": client} for client in range(CLIENTS)]
    run = prepare(InProcessNodes(*nodes), config, Terms())
    run.run_round()
    return run.run_round()


def per_client(line: dict[str, Any]) -> str:
    """Bytes of one called client as a table's cell; what workers fetch, all but all of their part, is left out."""
    return f"{size((line['bytes_down'] - line['bytes_workers']) / CALLED)} / {size(line['bytes_up'] / CALLED)}"


def size(count: float) -> str:
    """Bytes in words."""
    return f"{count / 1e6:.2f} MB" if count >= 1e6 else f"{count / 1e3:.0f} kB"


def write_images(folder: Path, shape: tuple[int, ...]) -> None:
    """A few noisy images of each class."""
    folder.mkdir()
    draw = np.random.default_rng(0)
    for prefix in ("", "test_"):
        np.save(folder / f"{prefix}images.npy", draw.integers(0, 256, (CLASSES * 3, *shape), dtype=np.uint8))
        np.save(folder / f"{prefix}labels.npy", np.arange(CLASSES * 3) % CLASSES)


if __name__ == "__main__":
    main()
