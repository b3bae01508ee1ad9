"""Attack × defence: how much accuracy malicious clients cost with each defence, and how many of them are left out.

    fedsat data get mnist
    python -m reproduction.robustness --model mlp           # runs what results/robustness.csv does not have yet
    python -m reproduction.robustness --page                # only writes docs/measurements/robustness.md

Trials for choosing a defence (about two seconds per run) have their own seeds and their own file:

    python -m reproduction.robustness --dataset mnist-mini --model mlp --rounds 30 --first-seed 100 \\
        --results trials.csv --document trials.md

Every run is a row of the file, appended when it ends. The same command continues where it was stopped, and shards
(`--shard 0/4` … `--shard 3/4`) may append to one file at the same time. The most informative runs come first.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import multiprocessing
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from filelock import FileLock

import fedsat
from fedsat.data import Split
from fedsat.engine.base import BaseEngine
from fedsat.engine.evaluate import Counter
from fedsat.engine.examples import Examples
from fedsat.experiment.config import Config
from fedsat.experiment.environment import environment
from fedsat.experiment.parts import method_parts
from fedsat.experiment.settings import override
from fedsat.metrics import RoundRecord
from fedsat.rounds.attacks import Backdoor, FalseUpdate, triggered
from fedsat.tree import Tree, tree_map
from reproduction.robustness_page import ABSENT, ATTACKS, DEFENCES, Row, read, write_page

SPLITS: dict[str, dict[str, Any]] = {
    "LS β=0.3": {"name": "ls", "beta": 0.3},
    "LSMC n=4": {"name": "lsmc", "classes_per_client": 4},
}


@dataclass(frozen=True)
class Absent(FalseUpdate):
    """Attackers send updates that are refused."""

    def instead(self, client_updates: Tree, draws: Sequence[np.random.Generator]) -> Tree:
        """Return NaN."""
        del draws
        return tree_map(lambda tensor: torch.full_like(tensor, torch.nan), client_updates)


@dataclass(frozen=True)
class Case:
    """One run of the study."""

    dataset: str
    model: str
    rounds: int
    split: str
    defence: str
    attack: str
    attackers: float
    seed: int

    @property
    def config(self) -> Config:
        """The run's configuration."""
        method, on, off = method_parts(self.defence)
        settings = [
            *method,
            ("dataset", self.dataset),
            ("model", self.model),
            ("rounds", self.rounds),
            ("partition", SPLITS[self.split]),
            ("attack", "reproduction.robustness:Absent" if self.attack == ABSENT else self.attack),
            ("attackers", self.attackers),
            ("seed", self.seed),
        ]
        return Config.of(override({}, settings, on, off))

    @property
    def key(self) -> tuple[str, ...]:
        """The columns that identify the case in the file."""
        return tuple(str(value) for value in asdict(self).values())


MEASURED = ("accuracy", "worst_recall", "backdoor", "attackers_weight", "attackers_left_out", "honest_left_out")
COLUMNS = [
    *Case.__dataclass_fields__,
    "status",
    *MEASURED,
    "seconds",
    "fedsat",
    "torch",
    "device",
]


def main() -> None:
    """Run the cases that are missing, then write the tables."""
    given = arguments()
    if not given.page:
        cases = [case for case in wanted(given) if case.key not in done(given.results)]
        part, parts = (int(number) for number in given.shard.split("/"))
        carry_out(cases[part::parts], given)
    if given.page or given.shard == "0/1":
        write_page(read(given.results), given.document)


def arguments() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--dataset", default="mnist")
    parser.add_argument("--model", default="lenet5")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--fractions", type=float, nargs="+", default=[0.2, 0.3, 0.1], help="shares of attackers")
    parser.add_argument("--splits", nargs="+", default=list(SPLITS), choices=SPLITS)
    parser.add_argument("--attacks", nargs="+", default=ATTACKS, choices=[*ATTACKS, ABSENT])
    parser.add_argument("--defences", nargs="+", default=DEFENCES)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--shard", default="0/1", help="i/n: every n-th of the missing cases, starting at the i-th")
    parser.add_argument("--until", type=float, default=float("inf"), help="seconds after which no new case is started")
    parser.add_argument("--results", type=Path, default=Path("results/robustness.csv"))
    parser.add_argument("--document", type=Path, default=Path("docs/measurements/robustness.md"))
    parser.add_argument("--page", action="store_true", help="only write the tables")
    return parser.parse_args()


def wanted(given: argparse.Namespace) -> Iterator[Case]:
    """Return all cases, the most informative first: seed by seed, the clean runs before the attacks."""
    seeds = range(given.first_seed, given.first_seed + given.seeds)
    for fraction, seed in itertools.product(given.fractions, seeds):
        common = (given.dataset, given.model, given.rounds)
        pairs = list(itertools.product(given.splits, given.defences))
        if fraction == given.fractions[0]:
            yield from (Case(*common, split, defence, "none", 0.0, seed) for split, defence in pairs)
        for attack in given.attacks:
            yield from (Case(*common, split, defence, attack, fraction, seed) for split, defence in pairs)


def carry_out(cases: Sequence[Case], given: argparse.Namespace) -> None:
    """Run each case in its own process; a row is written as soon as its run has ended."""
    began, failures = time.perf_counter(), 0
    context = multiprocessing.get_context("spawn")  # a forked process could not use the GPU
    with ProcessPoolExecutor(given.jobs, mp_context=context) as pool:
        deadline = time.time() + given.until
        futures = {pool.submit(run_case, case, given.device, deadline): case for case in cases}
        for number, future in enumerate(as_completed(futures), start=1):
            case = futures[future]
            try:
                row = future.result()
            except Exception as error:
                failures += 1
                print(f"{' '.join(case.key)}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
                continue
            if row is not None:
                append(row, given.results)
                shown = row["status"] if row["accuracy"] == "" else f"{100 * row['accuracy']:.1f} %"
                spent = time.perf_counter() - began
                print(f"[{number}/{len(cases)}, {spent:.0f} s] {' '.join(case.key[3:])}: {shown}", flush=True)
    if failures:
        sys.exit(f"{failures} of {len(cases)} cases failed; repeat the command to try them again")


def run_case(case: Case, device: str, deadline: float) -> Row | None:
    """Run a case and return its row; a training that diverges is a result. None if there is no time left."""
    if time.time() > deadline:
        return None
    torch.set_num_threads(1)
    began = time.perf_counter()
    config = Config.of({**case.config.table(), "device": device})
    run = fedsat.prepare(config)
    status, accuracy, worst, backdoor = "completed", "", "", None
    try:
        fedsat.train(run)
        accuracy, worst = (run.summary["last_ten"][name] for name in ("accuracy", "worst_class_recall"))
        backdoor = backdoor_success(run)
    except fedsat.TrainingError:
        status = f"diverged in round {run.training.rounds + 1}"
    made = environment(run.setup.device)
    return {
        **asdict(case),
        "status": status,
        "accuracy": accuracy,
        "worst_recall": worst,
        "backdoor": "" if backdoor is None else backdoor,
        **shares(run.records, set(run.setup.faults.attackers.tolist())),
        "seconds": f"{time.perf_counter() - began:.1f}",
        **{name: made[name] for name in ("fedsat", "torch", "device")},
    }


def backdoor_success(run: fedsat.Run) -> float | None:
    """Return how often the final model predicts the target for a test sample of another class with the trigger."""
    engine, attack = run.setup.engine, run.setup.config.attack
    if not isinstance(attack, Backdoor) or not isinstance(engine, BaseEngine):
        return None
    dataset = engine.federation.dataset
    others = dataset.test.labels != attack.target
    marked = Split(triggered(dataset.test.images[others], dataset.train.images), dataset.test.labels[others])
    dtype = next(iter(run.model.params.values())).dtype
    examples = Examples(marked, dataset, engine.device, dtype)
    confusion = Counter(engine.network, examples, dataset.classes, batch=1000).evaluate(run.model).confusion
    return float(confusion[:, attack.target].sum() / confusion.sum())


def shares(records: Sequence[RoundRecord], attackers: set[int]) -> Row:
    """Return the attackers' share of the weight, and how many updates of attackers and of others were left out.

    An update is left out if it is refused or gets weight 0. Updates that the server never received do not count.
    """
    weight, total = 0.0, 0.0
    left_out: dict[bool, list[bool]] = {True: [], False: []}
    for record in records:
        for client, share in zip(record.clients, record.weights, strict=True):
            hostile = client in attackers
            weight, total = weight + share * hostile, total + share
            left_out[hostile].append(share == 0)
        for refused in record.refused:
            left_out[int(refused) in attackers].append(True)

    def mean(flags: list[bool]) -> float | str:
        return float(np.mean(flags)) if flags else ""

    return {
        "attackers_weight": weight / total if attackers and total else "",
        "attackers_left_out": mean(left_out[True]),
        "honest_left_out": mean(left_out[False]),
    }


def append(row: Row, path: Path) -> None:
    """Add a row to the file, to which other processes may write at the same time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_name(f".{path.name}.lock")), path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        if file.tell() == 0:
            writer.writeheader()
        writer.writerow({key: f"{v:.5f}" if key in MEASURED and v != "" else v for key, v in row.items()})


def done(path: Path) -> set[tuple[str, ...]]:
    """Return the cases in the file that this version has run."""
    rows = [row for row in read(path) if row["fedsat"] == fedsat.__version__]
    return {tuple(row[name] for name in Case.__dataclass_fields__) for row in rows}


if __name__ == "__main__":
    main()
