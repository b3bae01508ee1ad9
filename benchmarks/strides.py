"""What a server sees of its steps, and what does and does not show that they are too short: docs/measurements/study.md.

    fedsat data get mnist
    OMP_NUM_THREADS=1 python benchmarks/strides.py partition=ls lr=0.001 rounds=200 lengthen=3

Trains FedSat on MNIST with the MLP unless settings say otherwise, and prints means over blocks of rounds: the cosine of
successive aggregates, the agreement ‖Δ̄‖²/Σ_k w_k ‖Δ_k‖² of clients, the length ‖Δ̄‖/‖Θ‖, and r_t/(√t ‖Δ̄‖), which
`lengthen` compares with 8 (see fedsat/algorithms/pace.py). `samples=10000` trains on a part of the dataset.
"""

from __future__ import annotations

import itertools
import sys
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch import Tensor

import fedsat
from fedsat.algorithms import FedSat, Model, Updates
from fedsat.algorithms.base import client_updates
from fedsat.algorithms.pace import length
from fedsat.cli.options import read_settings
from fedsat.data import Dataset, load
from fedsat.options import options_of
from fedsat.seeding import generator
from fedsat.tree import Tree, norms, tree_map

SETTINGS: dict[str, Any] = {
    "dataset": "mnist", "model": "mlp", "rounds": 100, "clients": 100, "per_round": 15, "worker_samples": 100,
    "evaluate_every": 5, "device": "cpu", "seed": 100,
}  # fmt: skip
BLOCKS = (10, 30, 60, 100, 200, 400)
COLUMNS = ("cosine", "agreement", "length", "quotient")


@dataclass(frozen=True)
class Watched(FedSat):
    """FedSat whose rounds are written down."""

    def update(self, model: Model, updates: Updates, weights: Tensor) -> Tree:
        """Return the aggregate, and write down the round."""
        update = super().update(model, updates, weights)
        squares = norms(client_updates(model, updates)).square()
        ROUNDS.append((model.params, update, float((weights * squares).sum())))
        return update


ROUNDS: list[tuple[Tree, Tree, float]] = []
"""Of each round: the model before it, the aggregate, and the mean squared length of the clients' updates."""


def main() -> None:
    """Train, and print a row for each block of rounds."""
    given = dict(read_settings(sys.argv[1:]))
    options = {name: given.pop(name) for name in options_of(FedSat) if name in given}
    samples = given.pop("samples", None)
    settings = {**SETTINGS, **given, "algorithm": Watched(**options)}
    if samples:
        settings["dataset"] = part(load(settings["dataset"]), samples)
    run = fedsat.run(**settings, progress=False)
    print(f"accuracy, mean of the last ten rounds: {100 * run.summary['last_ten']['accuracy']:.2f}")
    print("| rounds |", " | ".join(COLUMNS), "|\n|---|---:|---:|---:|---:|")
    rows = measured()
    for start, end in itertools.pairwise(BLOCKS):
        if start < len(rows):
            means = " | ".join(f"{mean:.3f}" for mean in rows[start:end].mean(0))
            print(f"| {start + 1} to {min(end, len(rows))} | {means} |")


def part(dataset: Dataset, samples: int) -> Dataset:
    """Return the dataset with some of its training samples."""
    chosen = generator(SETTINGS["seed"], "part").permutation(len(dataset.train))[:samples]
    return replace(dataset, name=f"{dataset.name}-part", train=dataset.train.take(chosen))


def measured() -> np.ndarray[Any, Any]:
    """Return one row for each round, with the numbers of `COLUMNS`."""
    rows, before, far, (start, _, _) = [], None, 0.0, ROUNDS[0]
    for number, (params, update, square) in enumerate(ROUNDS, start=1):
        far = max(far, float(length(tree_map(lambda here, there: here - there, params, start))))
        long = float(length(update))
        cosine = product(before, update) / float(length(before)) / long if before else 0.0
        rows.append((cosine, long**2 / square, long / float(length(params)), far / (number**0.5 * long)))
        before = update
    return np.array(rows)


def product(one: Tree, other: Tree) -> float:
    """Return the inner product of two trees."""
    return sum(float((one[name].double() * other[name].double()).sum()) for name in one)


if __name__ == "__main__":
    main()
