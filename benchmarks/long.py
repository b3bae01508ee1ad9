"""A run of 500 rounds: is memory constant, are late rounds as fast as early ones, do files grow linearly?

    python benchmarks/long.py                   (about five minutes on an idle core; needs `fedsat data get mnist`)

MNIST, MLP, FedSat with one local epoch and five workers, with files and checkpoints. Time is CPU time, which other
programs on the machine affect less than wall time. Memory depends on the sampled clients. The rounds after the 50th are
divided into five parts, and medians of time and memory are taken over each. The script fails if one of them differs by
more than 5 % (memory) or 10 % (time) from their mean, or if the size of the metrics differs by more than 5 % from a
straight line.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import fedsat

SETTLED = 50
"""Rounds after which every client has been sampled and has a state."""


def megabytes() -> float:
    """Return the current memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20


def measure(folder: Path, rounds: int) -> dict[str, list[float]]:
    """Return, for each round, its time, and the memory and the size of the metrics after it."""
    seen: dict[str, list[float]] = {"seconds": [], "memory": [], "metrics": [], "files": []}
    before = [time.process_time()]

    def watch(_: Any, __: dict[str, Any]) -> None:
        now = time.process_time()
        seen["seconds"].append(now - before[0])
        seen["memory"].append(megabytes())
        seen["metrics"].append((folder / "metrics.jsonl").stat().st_size / 1e6)
        seen["files"].append(sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6)
        before[0] = time.process_time()

    run = fedsat.prepare(
        fedsat.configure(dataset="mnist", algorithm="fedsat", epochs=1, workers=5, rounds=rounds), folder
    )
    fedsat.train(run, watch)
    return seen


def main() -> None:
    """Measure, print and check."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=500)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fedsat-long-") as folder:
        seen = {name: np.array(values) for name, values in measure(Path(folder) / "run", given.rounds).items()}
    print("| rounds | CPU s per round | memory MB | metrics MB | all files MB |")
    print("|---|---|---|---|---|")
    fifths = np.array_split(np.arange(SETTLED, given.rounds), 5)
    times, memory = (np.array([np.median(seen[name][part]) for part in fifths]) for name in ("seconds", "memory"))
    for part, spent, held in zip(fifths, times, memory, strict=True):
        last = part[-1]
        sizes = f"{seen['metrics'][last]:.2f} | {seen['files'][last]:.0f}"
        print(f"| {part[0] + 1} to {last + 1} | {spent:.3f} | {held:.0f} | {sizes} |")
    line = seen["metrics"][-1] * np.arange(1, given.rounds + 1) / given.rounds
    later = seen["memory"][SETTLED:]
    print(f"memory of single rounds after round {SETTLED}: {later.min():.0f} to {later.max():.0f} MB")
    drifts = {
        "memory": (float(np.abs(memory / memory.mean() - 1).max()), 0.05),
        "time per round": (float(np.abs(times / times.mean() - 1).max()), 0.10),
        "size of metrics, compared with a straight line": (
            float(np.abs(seen["metrics"] - line).max() / line[-1]),
            0.05,
        ),
    }
    for name, (drift, allowed) in drifts.items():
        print(f"{name}: within {drift:.1%} (at most {allowed:.0%})")
    if any(drift > allowed for drift, allowed in drifts.values()):
        raise SystemExit("not constant")


if __name__ == "__main__":
    main()
