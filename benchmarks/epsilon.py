"""What differential privacy costs in accuracy: the tables in docs/measurements/privacy.md.

    fedsat data get mnist
    OMP_NUM_THREADS=1 python benchmarks/epsilon.py

FedAvg, and FedSat without workers (`--without pwa`), with and without its correction, all with equal weights: with
`--privacy central` for ε of 1, 3 and 8 at δ = 10⁻⁵, and without privacy. The noise is the smallest that the ledger
allows for all rounds.
"""

from __future__ import annotations

import statistics
import sys
from typing import Any

import fedsat
from fedsat.experiment import Config, train

EPSILONS: tuple[float | None, ...] = (1.0, 3.0, 8.0, None)
SEEDS = range(3)
METHODS: dict[str, dict[str, Any]] = {
    "fedavg": {"algorithm": {"name": "fedavg"}, "lr": 0.1, "clip": 0.5},
    "fedsat-pwa": {"algorithm": {"name": "fedsat"}, "lr": 0.03, "clip": 0.2},
    "fedsat-pwa-correction": {"algorithm": {"name": "fedsat", "correction": False}, "lr": 0.03, "clip": 0.2},
}
"""The learning rate and clip of each method, from a few trials with seed 0 and ε = 8."""
DATASETS: dict[str, dict[str, Any]] = {
    "mnist": {
        "dataset": "mnist", "partition": {"name": "lsmc", "classes_per_client": 2}, "clients": 1000, "per_round": 500,
        "model": {"name": "mlp", "hidden": [32]}, "rounds": 15, "steps": 4, "batch_size": 32,
    },
    "clinics-synthetic": {
        "dataset": "clinics-synthetic", "partition": "natural", "clients": 8, "per_round": 8, "model": "tabular",
        "label": "outcome", "client": "clinic", "rounds": 15, "steps": 10, "batch_size": 32,
    },
}  # fmt: skip


def main() -> None:
    """Print one row per dataset, method and ε."""
    print("| data | method | ε | noise | accuracy, % | balanced accuracy, % | worst-class recall, % |")
    print("|---|---|---|---|---|---|---|")
    for dataset in sys.argv[1:] or DATASETS:
        for method in METHODS:
            for epsilon in EPSILONS:
                print(row(dataset, method, epsilon), flush=True)


def row(dataset: str, method: str, epsilon: float | None) -> str:
    """Train with all seeds, and return the means and standard deviations of the last round."""
    noise = None if epsilon is None else noise_for(dataset, method, epsilon)
    runs = [train(fedsat.prepare(config(dataset, method, noise, seed))).summary for seed in SEEDS]
    cells = [
        f"{100 * statistics.mean(values):.1f} ± {100 * statistics.stdev(values):.1f}"
        for values in ([run[name] for run in runs] for name in ("accuracy", "balanced_accuracy", "worst_class_recall"))
    ]
    shown = "∞" if epsilon is None else f"{epsilon:g}"
    return f"| {dataset} | {method} | {shown} | {'' if noise is None else f'{noise:.2f}'} | {' | '.join(cells)} |"


def config(dataset: str, method: str, noise: float | None, seed: int) -> Config:
    """Return the configuration of one run."""
    settings, chosen = DATASETS[dataset], METHODS[method]
    privacy = "none" if noise is None else {"name": "central", "dp_clip": chosen["clip"], "dp_noise": noise}
    return fedsat.configure(
        **settings,
        algorithm={**chosen["algorithm"], "weighting": "uniform"},
        lr=chosen["lr"],
        privacy=privacy,
        seed=seed,
        evaluate_every=settings["rounds"],
    )


def noise_for(dataset: str, method: str, epsilon: float) -> float:
    """Return the smallest noise, within 1 %, with which all rounds together spend no more than ε."""
    low, high = 0.1, 1e4
    while high / low > 1.01:
        middle = (low * high) ** 0.5
        ledger = config(dataset, method, middle, 0).ledger(on_nodes=False)
        assert ledger is not None
        low, high = (low, middle) if ledger.epsilon(DATASETS[dataset]["rounds"]) <= epsilon else (middle, high)
    return high


if __name__ == "__main__":
    main()
