"""Kill a run with SIGKILL at random moments, resume it each time, and check that it equals an uninterrupted run.

python -m benchmarks.kill                   (25 kills, about five minutes on two cores)
"""

from __future__ import annotations

import argparse
import random
import tempfile
from pathlib import Path

from tests.support.kill import kill_and_resume


def main() -> None:
    """Kill, resume, compare."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kills", type=int, default=25)
    parser.add_argument("--rounds", type=int, default=150)
    parser.add_argument("--seed", type=int, default=0, help="seed of the random moments")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fedsat-kill-") as folder:
        caught = kill_and_resume(Path(folder), given.rounds, given.kills, random.Random(given.seed))
    for where, times in caught.most_common():
        print(f"{times} {where}")
    print(f"{caught.total()} kills, {given.rounds} rounds: every file equals that of the uninterrupted run")
    if caught.total() < given.kills:
        raise SystemExit("the run completed before all kills; use more --rounds")


if __name__ == "__main__":
    main()
