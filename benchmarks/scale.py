"""Memory and time of federations with very many clients.

    python benchmarks/scale.py            (about ten minutes; --only 'ResNet-8, SCAFFOLD' runs one case)

The data are noise in the shape of MNIST or CIFAR-10, six samples for each client. Clients' states beyond the given
memory go to disk. Each case runs in its own process, which reports its peak memory, the time before the first round,
and the median seconds of a round at the beginning and at the end.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

SAMPLES = 6
"""Samples of each client."""
MNIST, CIFAR = (28, 28), (32, 32, 3)
MANY = {"shape": MNIST, "clients": 100_000, "model": "mlp", "rounds": 100, "state_memory": 0.1}
LARGE = {"shape": CIFAR, "clients": 10_000, "model": "resnet8", "rounds": 10, "per_round": 20, "state_memory": 0.3}
CASES: dict[str, dict[str, Any]] = {
    "100,000 clients, MLP, FedAvg": {**MANY, "algorithm": "fedavg"},
    "100,000 clients, MLP, FedSat": {**MANY, "algorithm": "fedsat"},
    "10,000 clients, ResNet-8, FedSat": {**LARGE, "algorithm": "fedsat"},
    "10,000 clients, ResNet-8, SCAFFOLD": {**LARGE, "algorithm": "scaffold"},
    "10,000 clients, ResNet-8, FedDyn": {**LARGE, "algorithm": "feddyn"},
}


def peak_megabytes() -> float:
    """Return the peak memory of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def run_case(case: dict[str, Any], folder: Path) -> dict[str, float]:
    """Run one case and return its time and memory."""
    import fedsat  # noqa: PLC0415 (each case imports in its own process)

    settings = {"partition": "iid", "per_round": 100, "workers": 5, "epochs": 1, "evaluate_every": 10, **case}
    write_noise(folder, settings.pop("shape"), SAMPLES * case["clients"])
    began = time.perf_counter()
    run = fedsat.prepare(fedsat.configure(dataset=str(folder), **settings), folder / "run")
    setup = time.perf_counter() - began
    fedsat.train(run, for_more=False)
    seconds = [sum(record.seconds.values()) for record in run.records]
    tenth = max(3, len(seconds) // 10)
    states = sum(len(tree) for state in run.training.states.values() for tree in state.values())
    return {
        "set-up s": setup,
        "first rounds s": median(seconds[1 : 1 + tenth]),
        "last rounds s": median(seconds[-tenth:]),
        "clients with a state": len(run.training.states) if states else 0,
        "peak MB": peak_megabytes(),
    }


def write_noise(folder: Path, shape: tuple[int, ...], count: int) -> None:
    """Write a dataset of noise, without holding it in memory."""
    rng = np.random.default_rng(0)
    for part, size in (("", count), ("test_", 1000)):
        images = np.lib.format.open_memmap(folder / f"{part}images.npy", "w+", np.uint8, (size, *shape))
        for first in range(0, size, 1000):
            images[first : first + 1000] = rng.integers(0, 256, images[first : first + 1000].shape, dtype=np.uint8)
        np.save(folder / f"{part}labels.npy", np.arange(size) % 10)


def main() -> None:
    """Run every case in its own process and print its time and memory."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", default="", help="run the cases whose names contain this text")
    parser.add_argument("--case", help="run one case here and print its numbers as JSON")
    given = parser.parse_args()
    if given.case:
        with tempfile.TemporaryDirectory(prefix="fedsat-scale-") as folder:
            print(json.dumps(run_case(CASES[given.case], Path(folder))))
        return
    for name in CASES:
        if given.only in name:
            done = subprocess.run([sys.executable, __file__, "--case", name], stdout=subprocess.PIPE, check=True)
            numbers = json.loads(done.stdout.splitlines()[-1])
            print(f"{name}: {', '.join(f'{key} {value:.4g}' for key, value in numbers.items())}", flush=True)


if __name__ == "__main__":
    main()
