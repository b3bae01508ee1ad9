"""A run of 500 rounds: does memory stay, does a round take as long at the end as at the start, do files grow evenly?

    python benchmarks/long.py                   (about five minutes on an idle core; needs `fedsat data get mnist`)

MNIST, MLP, FedSat with one local epoch and five workers, files and checkpoints written as always. A round's time is
the processor's, which other programs on the machine change less than the clock's. Memory goes up and down with the
clients that a round happens to call, so both are medians over fifths of the rounds after the 50th. Stops with an error
if one of them is further than 5 % (memory) or 10 % (time) from their mean, or the size of the metrics further than 5 %
from a straight line.
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
"""Rounds after which every client has been called, and has its state."""


def megabytes() -> float:
    """Memory that this process holds now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20


def measure(folder: Path, rounds: int) -> dict[str, list[float]]:
    """What each round took, what the process held after it, and how large the metrics were."""
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
    """Measure, print, judge."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=500)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fedsat-long-") as folder:
        seen = {name: np.array(values) for name, values in measure(Path(folder) / "run", given.rounds).items()}
    print("| rounds | processor s a round | memory MB | metrics MB | all files MB |")
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
        "time of a round": (float(np.abs(times / times.mean() - 1).max()), 0.10),
        "metrics, from a straight line": (float(np.abs(seen["metrics"] - line).max() / line[-1]), 0.05),
    }
    for name, (drift, allowed) in drifts.items():
        print(f"{name}: within {drift:.1%} (at most {allowed:.0%})")
    if any(drift > allowed for drift, allowed in drifts.values()):
        raise SystemExit("not flat")


if __name__ == "__main__":
    main()
