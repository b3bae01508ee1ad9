"""How far honest clients move, as multiples of their round's median: what `--max-norm` must let through.

    python benchmarks/norms.py                                      (about five minutes: the built-in digits)
    python benchmarks/norms.py --dataset mnist --seeds 3            (about ten minutes)

Every method is played for five rounds on splits from mildly to extremely uneven, with nobody refused. A cell is the
longest update ‖θ_k − Θ‖ of any round and seed, in medians of its round; of a client that took more steps than the
median one, as many times less (`stretch`).
"""

from __future__ import annotations

import argparse
from typing import Any

import fedsat
from fedsat.algorithms import Server
from fedsat.algorithms.aggregator import norms
from fedsat.algorithms.base import client_updates
from fedsat.rounds.local import TrainedRound, finite
from fedsat.rounds.refusal import stretch

METHODS = ("fedavg", "scaffold", "fedlada", "elastic", "feddyn", "fedsat")
"""FedAvg, and those whose local steps are most unlike its."""
SPLITS: dict[str, dict[str, Any]] = {
    "quantity, β = 0.1": {"partition": "quantity", "partition.beta": 0.1},
    "quantity, β = 0.5": {"partition": "quantity", "partition.beta": 0.5},
    "ls": {"partition": "ls"},
    "lsmc": {"partition": "lsmc"},
    "lqsmc": {"partition": "lqsmc"},
}
ROUNDS = 5


def longest(**settings: Any) -> float:
    """The farthest that an update of a run's rounds went."""
    run = fedsat.prepare(fedsat.configure(**settings, rounds=ROUNDS, max_norm=0.0))
    train, found = run.setup.engine.train, [0.0]

    def watched(server: Server, *rest: Any) -> TrainedRound:
        trained = train(server, *rest)
        updates = trained.updates
        found.append(float(stretch(norms(client_updates(server.model, updates)), updates.steps, finite(trained)).max()))
        return trained

    run.setup.engine.train = watched  # type: ignore[assignment, method-assign]
    fedsat.train(run)
    return max(found)


def main() -> None:
    """Print a table row for each method."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", default="mnist-mini")
    parser.add_argument("--seeds", type=int, default=8, help="seeds 0 to this, exclusive")
    asked = parser.parse_args()
    print(f"| | {' | '.join(SPLITS)} |")
    print("|---|" + "---:|" * len(SPLITS))
    for method in METHODS:
        cells = [
            max(longest(dataset=asked.dataset, algorithm=method, seed=seed, **split) for seed in range(asked.seeds))
            for split in SPLITS.values()
        ]
        print(f"| {method} | {' | '.join(f'{cell:.1f}' for cell in cells)} |", flush=True)


if __name__ == "__main__":
    main()
