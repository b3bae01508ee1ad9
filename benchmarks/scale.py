"""Memory and set-up time of growing federations. long.py measures many rounds.

    python benchmarks/scale.py            (about five minutes; needs `fedsat data get mnist`)

Each case runs in its own process, which reports its peak memory.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

CASES: dict[str, dict[str, Any]] = {
    "10,000 clients of 6 samples, FedAvg": {"clients": 10_000, "algorithm": "fedavg", "rounds": 20},
    "10,000 clients of 6 samples, FedSat": {"clients": 10_000, "algorithm": "fedsat", "rounds": 20},
    "100,000 clients of 6 samples, FedAvg": {"clients": 100_000, "algorithm": "fedavg", "rounds": 3},
}


def peak_megabytes() -> float:
    """Return the peak memory of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def run_case(case: dict[str, Any]) -> dict[str, Any]:
    """Run one case and return its time and memory."""
    import fedsat  # noqa: PLC0415 (each case imports in its own process)

    settings = {"partition": "iid", "per_round": 100, "workers": 5, "epochs": 1, "evaluate_every": 50, **case}
    if case["clients"] == 10_000:
        settings |= {"dataset": "mnist"}
    else:
        settings |= {"dataset": str(many_samples(6 * case["clients"]))}
    began = time.perf_counter()
    run = fedsat.prepare(fedsat.configure(**settings))
    setup = time.perf_counter() - began
    fedsat.train(run)
    seconds = sum(sum(record.seconds.values()) for record in run.records) / len(run.records)
    return {"set-up s": setup, "s per round": seconds, "peak MB": peak_megabytes()}


def many_samples(count: int) -> Path:
    """Return a folder of noise with the given number of samples, which is created once."""
    folder = Path("runs/scale-data")
    if not (folder / "labels.npy").exists():
        folder.mkdir(parents=True, exist_ok=True)
        rng = np.random.default_rng(0)
        np.save(folder / "images.npy", rng.integers(0, 256, (count, 8, 8), dtype=np.uint8))
        np.save(folder / "labels.npy", np.arange(count) % 10)
        np.save(folder / "test_images.npy", rng.integers(0, 256, (1000, 8, 8), dtype=np.uint8))
        np.save(folder / "test_labels.npy", np.arange(1000) % 10)
    return folder


def main() -> None:
    """Run every case in its own process and print its time and memory."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--case", help="run one case here and print its numbers as JSON")
    given = parser.parse_args()
    if given.case:
        print(json.dumps(run_case(CASES[given.case])))
        return
    for name in CASES:
        done = subprocess.run([sys.executable, __file__, "--case", name], capture_output=True, text=True, check=True)
        print(f"{name}: {done.stdout.strip().splitlines()[-1]}", flush=True)


if __name__ == "__main__":
    main()
