"""Kill a run with SIGKILL at random moments, resume it each time, and check that it ends like an undisturbed one.

python -m benchmarks.kill                   (25 kills, about five minutes on two cores)
"""

from __future__ import annotations

import argparse
import random
import tempfile
from pathlib import Path

from tests.support.kill import play


def main() -> None:
    """Kill, resume, compare."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kills", type=int, default=25)
    parser.add_argument("--rounds", type=int, default=150)
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fedsat-kill-") as folder:
        caught = play(Path(folder), given.rounds, given.kills, random.Random(given.seed))
    for where, times in caught.most_common():
        print(f"{times} {where}")
    print(f"{caught.total()} kills, {given.rounds} rounds: every file ends as in the undisturbed run")
    if caught.total() < given.kills:
        raise SystemExit("the run was done before all kills; give it more --rounds")


if __name__ == "__main__":
    main()
