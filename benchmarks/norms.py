"""The longest updates of honest clients, in medians of the round: `--max-norm` must accept them.

    python benchmarks/norms.py                                      (about five minutes: the built-in digits)
    python benchmarks/norms.py --dataset mnist --seeds 3            (about ten minutes)

Every method runs for five rounds on splits from mildly to extremely uneven, with no update refused. A cell is the
longest update ‖θ_k − Θ‖ of all rounds and seeds, in medians of its round. The length is divided by the number of steps
of clients that took more steps than the median (`stretch`).

The last row is the length of FedSat's aggregate relative to its limit: it should stay below 1.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

import fedsat
from fedsat.algorithms import Algorithm, FedSat, Model, Server, Updates
from fedsat.algorithms.base import client_updates
from fedsat.algorithms.fedsat import reach
from fedsat.rounds.local import TrainedRound, finite
from fedsat.rounds.refusal import stretch
from fedsat.tree import Tree, norms, tree_map

METHODS = ("fedavg", "scaffold", "fedlada", "elastic", "feddyn", "fedsat")
"""FedAvg, and the methods whose local steps differ most from it."""
SPLITS: dict[str, dict[str, Any]] = {
    "quantity, β = 0.1": {"partition": "quantity", "partition.beta": 0.1},
    "quantity, β = 0.5": {"partition": "quantity", "partition.beta": 0.5},
    "ls": {"partition": "ls"},
    "lsmc": {"partition": "lsmc"},
    "lqsmc": {"partition": "lqsmc"},
}
ROUNDS = 5


def longest(**settings: Any) -> float:
    """Return the length of the longest update of a run."""
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


@dataclass(frozen=True)
class Watched(FedSat):
    """FedSat that notes how close its aggregates come to their limit."""

    reached: ClassVar[list[float]] = []

    def update(self, model: Model, updates: Updates, weights: Tensor) -> Tree:
        """Note the length of the aggregate relative to its limit."""
        mean = tree_map(lambda tensor: tensor[None], Algorithm.update(self, model, updates, weights))
        limit = (weights * reach(norms(client_updates(model, updates)), updates, weights)).sum() / weights.sum()
        self.reached.append(float(norms(mean) / limit))
        return super().update(model, updates, weights)


def highest(**settings: Any) -> float:
    """Return the length of the longest aggregate of a run of FedSat, relative to its limit."""
    Watched.reached.clear()
    fedsat.run(**settings, algorithm=Watched(), rounds=ROUNDS)
    return max(Watched.reached)


def main() -> None:
    """Print a table with a row for each method."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", default="mnist-mini")
    parser.add_argument("--seeds", type=int, default=8, help="number of seeds, starting at 0")
    asked = parser.parse_args()
    print(f"| | {' | '.join(SPLITS)} |")
    print("|---|" + "---:|" * len(SPLITS))
    for method in METHODS:
        cells = [
            max(longest(dataset=asked.dataset, algorithm=method, seed=seed, **split) for seed in range(asked.seeds))
            for split in SPLITS.values()
        ]
        print(f"| {method} | {' | '.join(f'{cell:.1f}' for cell in cells)} |", flush=True)
    cells = [
        max(highest(dataset=asked.dataset, seed=seed, **split) for seed in range(asked.seeds))
        for split in SPLITS.values()
    ]
    print(f"| fedsat, aggregate | {' | '.join(f'{cell:.2f}' for cell in cells)} |")


if __name__ == "__main__":
    main()
