"""What differential privacy costs in accuracy: the tables in docs/measurements/privacy.md.

    fedsat data get mnist
    OMP_NUM_THREADS=1 python -m benchmarks.epsilon           # what results/privacy.csv lacks, then the tables
    python -m benchmarks.epsilon --page                      # only the tables

FedAvg, and FedSat with and without its correction, all with equal weights: with `--privacy central` for ε of 1, 3 and 8
at δ = 10⁻⁵, and without privacy. The noise is the smallest that the ledger allows for all rounds. For each ε, every
method chooses its learning rate and clip from the same grid, by the balanced accuracy on a fifth of the training data
that is held out, with a seed of which no results are reported.
"""

from __future__ import annotations

import csv
import itertools
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

import fedsat
from fedsat.algorithms import FedSat, Server, Updates
from fedsat.experiment import train
from fedsat.tree import Tree

EPSILONS = ("1", "3", "8", "∞")
SEEDS, TRIED = range(3), 100
"""Seeds of the results and of the trials."""
METHODS = {
    "fedavg": "fedavg+uniform",
    "fedsat": "fedsat+uniform",
    "fedsat-correction": "fedsat+uniform-correction",
    "fedsat, full γ": "benchmarks.epsilon:FullCorrection+uniform",
}
GRID: dict[str, list[float]] = {"lr": [0.01, 0.03, 0.1, 0.3], "dp_clip": [0.1, 0.2, 0.5, 1.0]}
DATASETS: dict[str, dict[str, Any]] = {
    "mnist": {
        "dataset": "mnist", "partition": {"name": "lsmc", "classes_per_client": 2}, "clients": 1000, "per_round": 500,
        "model": {"name": "mlp", "hidden": [32]}, "rounds": 15, "steps": 4, "batch_size": 32,
    },
    "clinics-synthetic": {
        "dataset": "clinics-synthetic", "partition": "natural", "clients": 8, "per_round": 8, "model": "tabular",
        "label": "outcome", "client": "clinic", "rounds": 5, "steps": 10, "batch_size": 32,
    },
}  # fmt: skip
SHOWN = ("accuracy", "balanced_accuracy", "worst_class_recall")
COLUMNS = ("data", "method", "epsilon", "noise", "lr", "clip", "judged_on", "seed", *SHOWN, "chosen", "fedsat")
RESULTS, PAGE = Path("results/privacy.csv"), Path("docs/measurements/privacy.md")
MARK = "<!-- tables, written by python -m benchmarks.epsilon -->"
Row = dict[str, Any]


@dataclass(frozen=True)
class FullCorrection(FedSat):
    """FedSat whose correction does not fade as noise takes over, for comparison."""

    def signal(self, server: Server, direction: Tree, updates: Updates, weights: Tensor) -> Tree:
        """Treat all of v_t as signal."""
        del direction, updates, weights
        return server.memory["signal"]


def main() -> None:
    """Run what is missing, then write the tables."""
    if "--page" not in sys.argv[1:]:
        for data, epsilon in itertools.product(DATASETS, EPSILONS):
            if not any((row["data"], row["epsilon"]) == (data, epsilon) for row in kept()):
                keep(rows_of(data, epsilon))
    head = PAGE.read_text(encoding="utf-8").partition(MARK)[0]
    PAGE.write_text(head + MARK + "\n\n" + "\n".join(tables(kept())) + "\n", encoding="utf-8")


def rows_of(data: str, epsilon: str) -> Iterator[Row]:
    """Choose each method's settings, train with them, and return the trials and the results."""
    noise = None if epsilon == "∞" else noise_for(data, float(epsilon))
    common = {"data": data, "epsilon": epsilon, "noise": "" if noise is None else f"{noise:.2f}"}
    settings = {**DATASETS[data], "evaluate_every": DATASETS[data]["rounds"], "privacy": privacy(noise)}
    grid = GRID if noise is not None else {"lr": GRID["lr"]}
    tuning = fedsat.tune(list(METHODS.values()), grid=grid, seed=TRIED, **settings)
    names = dict(zip(dict.fromkeys(trial.method for trial in tuning.trials), METHODS, strict=True))
    for trial in tuning.rows():
        yield {
            **common,
            "method": names[trial["method"]],
            "lr": trial["lr"],
            "clip": trial.get("dp_clip", ""),
            "judged_on": "holdout",
            "seed": TRIED,
            "balanced_accuracy": f"{trial['balanced_accuracy_mean']:.4f}",
            "chosen": "yes" if trial["chosen"] else "",
        }
    for (method, config), seed in itertools.product(tuning.best.items(), SEEDS):
        summary = train(fedsat.prepare(replace(config, seed=seed))).summary
        clip = getattr(config.privacy, "dp_clip", "")
        yield {
            **common,
            **{"method": names[method], "lr": config.lr, "clip": clip, "judged_on": "test", "seed": seed},
            **{name: f"{summary[name]:.4f}" for name in SHOWN},
        }


def privacy(noise: float | None) -> dict[str, Any]:
    """Return the setting of privacy."""
    return {"name": "none"} if noise is None else {"name": "central", "dp_noise": noise}


def noise_for(data: str, epsilon: float) -> float:
    """Return the smallest noise, within 1 %, with which all rounds together spend no more than ε."""
    low, high = 0.1, 1e4
    while high / low > 1.01:
        middle = (low * high) ** 0.5
        config = fedsat.configure(
            **DATASETS[data], algorithm={"name": "fedsat", "weighting": "uniform"}, privacy=privacy(middle)
        )
        ledger = config.ledger(on_nodes=False)
        assert ledger is not None
        low, high = (low, middle) if ledger.epsilon(config.rounds) <= epsilon else (middle, high)
    return high


def keep(rows: Iterator[Row]) -> None:
    """Append rows to the file, all of them or none."""
    made, new = list(rows), not RESULTS.exists()
    with RESULTS.open("a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        if new:
            writer.writeheader()
        writer.writerows({**row, "fedsat": fedsat.__version__} for row in made)


def kept() -> list[Row]:
    """Return the rows of the file."""
    if not RESULTS.exists():
        return []
    with RESULTS.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def tables(rows: Sequence[Row]) -> Iterator[str]:
    """Return a table for each dataset that has results."""
    for data in DATASETS:
        if all((row["data"], row["judged_on"]) != (data, "test") for row in rows):
            continue
        yield f"### {data}\n"
        yield "| method | ε | noise | η | C | accuracy, % | balanced accuracy, % | worst-class recall, % |"
        yield "|---|---:|---:|---:|---:|---:|---:|---:|"
        for method, epsilon in itertools.product(METHODS, EPSILONS):
            mine = [row for row in rows if (row["data"], row["method"], row["epsilon"]) == (data, method, epsilon)]
            runs = [row for row in mine if row["judged_on"] == "test"]
            if runs:
                noise, rate, clip = (runs[0][name] or "–" for name in ("noise", "lr", "clip"))
                cells = [spread([100 * float(row[name]) for row in runs]) for name in SHOWN]
                yield f"| `{method}` | {epsilon} | {noise} | {rate} | {clip} | {' | '.join(cells)} |"
        yield ""


def spread(values: Sequence[float]) -> str:
    """Return the mean and the standard deviation."""
    return f"{statistics.mean(values):.1f} ± {statistics.stdev(values):.1f}"


if __name__ == "__main__":
    main()
