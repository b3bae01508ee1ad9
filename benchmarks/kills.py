"""Kill parts of a federation with SIGKILL at random moments, and check that it ends like an undisturbed one.

    python -m benchmarks.kills                   (10 kills, about ten minutes on two busy cores)
    python -m benchmarks.kills --tls

A part is the SuperLink, the ServerApp, a node, a node that is sending a reply, or all processes including `fedsat
federate` itself. After the last kind of kill, `fedsat resume` continues the run; after the others, it continues by
itself.

With `--tls`, the federation runs as on several machines: `fedsat superlink`, nodes with keys (`fedsat supernode`), and
`flwr run`. What has ended is started again, as systemd would, and the run is submitted again if its server is gone.
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import fedsat
from tests.support.killed_deployment import Deployment
from tests.support.killed_federation import PARTS, Federation, results, wait_for

NODES, TERMS = 4, {"min_fraction": 1.0, "timeout": 120.0}
SETTINGS = {"dataset": "mnist-mini", "partition": "ls", "model": "mlp", "per_round": 3, "workers": 2, "epochs": 1}
LONGEST = 600.0
"""Largest number of seconds for a round, including everything that a kill costs."""


def main() -> None:
    """Kill, continue, compare, and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=24)
    parser.add_argument("--algorithm", default="fedsat")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random moments")
    parser.add_argument("--tls", action="store_true", help="run it as on several machines, with keys")
    given = parser.parse_args()
    draw, settings = random.Random(given.seed), {**SETTINGS, "algorithm": given.algorithm, "rounds": given.rounds}
    print(f"load {os.getloadavg()[0]:.1f}\n")
    with tempfile.TemporaryDirectory(prefix="fedsat-kills-") as folder, ExitStack() as stack:
        whole, killed = (make(Path(folder) / name, settings, tls=given.tls) for name in ("whole", "killed"))
        for federation in (whole, killed):
            stack.callback(federation.end)
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


def make(folder: Path, settings: dict[str, Any], *, tls: bool) -> Federation | Deployment:
    """Return a run on nodes in this folder."""
    if tls:
        return Deployment(folder, fedsat.configure(**settings, clients=NODES), TERMS)
    options = {**settings, **TERMS, "nodes": NODES}
    return Federation(folder, [f"--{name.replace('_', '-')}={value}" for name, value in options.items()])


def disturb(federation: Federation | Deployment, kills: int, pace: float, draw: random.Random) -> int:
    """Carry out a run with this many kills, each after a random time; return how many there were before its end."""

    def wait(done: Callable[[], bool]) -> None:
        def tended() -> bool:
            federation.tend()
            return done() or not federation.running

        wait_for(tended, LONGEST)

    federation.start()
    wait(lambda: federation.rounds > 0)
    for number in range(1, kills + 1):
        time.sleep(draw.uniform(0, pace))
        part, rounds, began = PARTS[(number - 1) % len(PARTS)], federation.rounds, time.monotonic()
        wait(lambda part=part: federation.kill(part, draw))  # type: ignore[misc]
        if federation.completed:
            return number - 1
        if part == "all":
            federation.start()
        wait(lambda rounds=rounds: federation.rounds > rounds)  # type: ignore[misc]
        print(f"| {number} | {part} | {rounds} | {time.monotonic() - began:.1f} |", flush=True)
    federation.finish()
    return kills


if __name__ == "__main__":
    main()
