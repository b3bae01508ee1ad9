"""Kill parts of a federation with SIGKILL at random moments, and check that it ends like an undisturbed one.

    python -m benchmarks.kills                   (10 kills, about ten minutes on two busy cores)

A part is the SuperLink, the ServerApp, a node, a node that is sending a reply, or all processes including `fedsat
federate` itself. After the last kind of kill, `fedsat resume` continues the run; after the others, it continues by
itself.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from pathlib import Path

from tests.support.killed_federation import PARTS, Federation, results, wait_for

SETTINGS = [
    "--dataset=mnist-mini", "--partition=ls", "--model=mlp", "--nodes=4", "--per-round=3", "--workers=2", "--epochs=1",
    "--min-fraction=1", "--timeout=120",
]  # fmt: skip
LONGEST = 600.0
"""Largest number of seconds for a round, including everything that a kill costs."""


def main() -> None:
    """Kill, continue, compare, and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=24)
    parser.add_argument("--algorithm", default="fedsat")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random moments")
    given = parser.parse_args()
    draw = random.Random(given.seed)
    arguments = [*SETTINGS, f"--algorithm={given.algorithm}", f"--rounds={given.rounds}"]
    with tempfile.TemporaryDirectory(prefix="fedsat-kills-") as folder:
        whole, killed = (Federation(Path(folder) / name, arguments) for name in ("whole", "killed"))
        began = time.monotonic()
        whole.start()
        whole.finish()
        pace = (time.monotonic() - began) / given.rounds
        print("| kill | part | recorded rounds | seconds until the next round is recorded |\n|---|---|---|---|")
        done = disturb(killed, given.kills, pace, draw)
        equal = results(killed.folder) == results(whole.folder)
    print(f"\n{done} kills, {given.rounds} rounds: {'equal' if equal else 'NOT equal'} to the undisturbed run")
    if not equal or done < given.kills:
        raise SystemExit(1)


def disturb(federation: Federation, kills: int, pace: float, draw: random.Random) -> int:
    """Carry out a run with this many kills, each after a random time; return how many there were before its end."""
    federation.start()
    wait_for(lambda: federation.rounds > 0, LONGEST)
    for number in range(1, kills + 1):
        time.sleep(draw.uniform(0, pace))
        part, rounds, began = PARTS[(number - 1) % len(PARTS)], federation.rounds, time.monotonic()
        wait_for(lambda part=part: not federation.running or federation.kill(part, draw), LONGEST)  # type: ignore[misc]
        if not federation.running and part != "all":
            return number - 1
        if part == "all":
            if federation.completed:
                return number - 1
            federation.start()
        wait_for(lambda rounds=rounds: federation.rounds > rounds or not federation.running, LONGEST)  # type: ignore[misc]
        print(f"| {number} | {part} | {rounds} | {time.monotonic() - began:.1f} |", flush=True)
    federation.finish()
    return kills


if __name__ == "__main__":
    main()
