"""The tuning: three values of each method's own option, on samples that are held out of the training data.

It is a search like those of `fedsat tune`, so no choice depends on the test set, and every method has the same number
of trials. FedAvg has no option of its own. FedSat chooses its server step η_g from the same three values as SCAFFOLD.

With a tenth of the learning rate, local steps are short, and a longer step of the server helps some methods. There,
every method of the paper, FedSat included, tries the same three values of η_g.
"""

from __future__ import annotations

import csv
import io
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w

from fedsat.errors import UsageError, unknown
from fedsat.experiment.defaults import Given
from fedsat.experiment.environment import environment, pick_device
from fedsat.experiment.folder import speaking_of, write_whole
from fedsat.experiment.jobs import Contender
from fedsat.experiment.tuning import HOLDOUT, Search
from fedsat.report.tuning import Tuning
from reproduction.results import without_places
from reproduction.studies import METHODS, NARROW, SMALL_LR, tuned_options

GRIDS: dict[str, tuple[str, tuple[Any, ...]]] = {
    "elastic": ("mu", (0.8, 0.9, 0.95)),
    "fedacg": ("beta", (0.001, 0.01, 0.1)),
    "fedavgm": ("momentum", (0.7, 0.9, 0.97)),
    "fedcm": ("alpha", (0.05, 0.1, 0.3)),
    "feddisco": ("weighting.a", (0.1, 0.5, 1.0)),
    "feddyn": ("alpha", (0.001, 0.01, 0.1)),
    "fedlada": ("epsilon", (1e-8, 1e-3, 1e-2)),
    "fedlc": ("objective.tau", (0.1, 0.5, 1.0)),
    "fedlesam": ("rho", (0.01, 0.05, 0.1)),
    "fedntd": ("objective.beta", (0.3, 1.0, 3.0)),
    "fedprox": ("mu", (0.001, 0.01, 0.1)),
    "fedrs": ("objective.alpha", (0.1, 0.5, 0.9)),
    "fedsam": ("rho", (0.01, 0.05, 0.1)),
    "fedsat": ("server_lr", (0.5, 1.0, 1.5)),
    "fedsat:paper": ("weighting.sigma", (1.0, 2.0, 1000.0)),
    "fedvls": ("objective.lam", (0.1, 0.5, 1.0)),
    "moon": ("mu", (0.1, 1.0, 5.0)),
    "scaffold": ("server_lr", (0.5, 1.0, 1.5)),
}
"""The values that the authors of each method try, or those of public implementations if the authors give none. The
paper leaves σ open, so `fedsat:paper` is tuned like a baseline."""

SERVER_STEPS: dict[str, tuple[str, tuple[Any, ...]]] = {
    **dict.fromkeys(METHODS, ("server_lr", (1.0, 2.0, 3.0))),
    "feddyn": GRIDS["feddyn"],  # its η_g is 1 by definition
}
"""The values of η_g for the small learning rate, the same for every method that has the option."""

SETTINGS: dict[str, dict[str, Any]] = {
    "mnist": {"partition": "lsmc", "model": "mlp", "rounds": 100, "classes_per_client": 4},
    "mnist-small-lr": {"dataset": "mnist", "partition": "ls", "model": "mlp", "rounds": 200, "lr": SMALL_LR},
    "cifar10": {"partition": "lsmc", **NARROW, "classes_per_client": 4},
    "cifar100": {"partition": "lsmc", **NARROW, "classes_per_client": 40},
}
"""Where methods are tuned: a cell of the tables for each dataset, on CIFAR with a narrow network."""

NAMES = {"width": "model.width", "classes_per_client": "partition.classes_per_client"}
TRIALS = "tuning.csv"
"""The file of all trials, in the folder of the results."""

SEED = 1000
"""A seed that no table uses, so that options are not chosen on the same draws on which they are measured."""

COLUMNS = (
    "dataset",
    "method",
    "setting",
    "accuracy",
    "chosen",
    "judged_on",
    "seconds",
    "fedsat",
    "torch",
    "device",
    "command",
    "error",
)


def search_of(dataset: str, methods: Sequence[str] = (), settings: Sequence[tuple[str, Any]] = ()) -> Search:
    """Return the search in one of `SETTINGS`, over all methods by default; `settings` override everything else."""
    if dataset not in SETTINGS:
        raise unknown("dataset of the tuning", dataset, SETTINGS)
    where = {"dataset": dataset, **SETTINGS[dataset]}
    small = where.get("lr") == SMALL_LR
    grids = SERVER_STEPS if small else GRIDS
    for method in methods:
        if method not in grids:
            raise unknown("tuned method", method, grids)
    named = [(NAMES.get(key, key), value) for key, value in where.items()]
    shared = [*named, ("holdout", HOLDOUT), ("seed", SEED), *settings]
    found = []
    for method in methods or grids:
        option, values = grids[method]
        own = tuned_options(where["dataset"], method) if small else []
        found.append(Contender(Given(shared), method, own, {f"algorithm.{option}": values}, seeds=1))
    return Search.of(found, "accuracy", None, "grid")


def rows_of(dataset: str, tuning: Tuning) -> list[dict[str, str]]:
    """Return one row for each trial."""
    made = environment(pick_device(tuning.trials[0].config.device))
    return [
        {
            "dataset": dataset,
            "method": trial.method,
            "setting": ", ".join(f"{key}={value}" for key, value in trial.choice),
            "accuracy": "" if trial.score is None else f"{100 * trial.score:.2f}",
            "chosen": "yes" if tuning.chosen.get(trial.method) is trial else "",
            "judged_on": f"{100 * trial.config.holdout:g} % of the training data",
            "seconds": f"{trial.seconds:.0f}",
            **{key: str(made[key] or "") for key in ("fedsat", "torch", "device")},
            "command": without_places(made["command"] or ""),
            "error": trial.error or "",
        }
        for trial in tuning.trials
    ]


def read_rows(path: Path) -> list[dict[str, str]]:
    """Return the trials in a file; none if there is no file."""
    if not path.is_file():
        return []
    rows = list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))
    if rows and set(rows[0]) != set(COLUMNS):
        raise UsageError(f"{path} is not a file of the tuning; its columns must be {', '.join(COLUMNS)}")
    return rows


def write_rows(path: Path, rows: Iterable[Mapping[str, str]]) -> None:
    """Add trials to a file. They replace those of the same method on the same dataset."""
    new = list(rows)
    replaced = {(row["dataset"], row["method"]) for row in new}
    kept = [row for row in read_rows(path) if (row["dataset"], row["method"]) not in replaced]
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(sorted([*kept, *new], key=lambda row: (row["dataset"], row["method"])))
    with speaking_of(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, text.getvalue().encode())


def tuning_table(rows: Sequence[Mapping[str, str]]) -> list[str]:
    """Return a table of the trials of one dataset, a line for each method; the chosen value is bold."""
    lines = ["| method | accuracy, mean of the last ten rounds |", "|---|---|"]
    for method in dict.fromkeys(row["method"] for row in rows):
        trials = [
            f"**{text}**" if row["chosen"] else text
            for row in rows
            if row["method"] == method
            for text in [f"{row['setting'].removeprefix('algorithm.')}: {row['accuracy'] or 'failed'}"]
        ]
        lines.append(f"| {method} | {', '.join(trials)} |")
    return lines


HEAD = """\
# The option chosen for each method on each dataset: the one with the best mean accuracy of the last ten rounds in one
# setting (a cell of the tables), with a seed that no table uses. `results/tuning.csv` has all trials and says what they
# were judged on. Written by `python -m reproduction tune`. Methods that are not listed use their defaults.
"""


def write_choices(path: Path, dataset: str, tuning: Tuning) -> dict[str, dict[str, Any]]:
    """Write the chosen options to `tuned.toml`, keep those of other methods and datasets, and return the new ones."""
    chosen = {
        method: {key.removeprefix("algorithm."): value for key, value in trial.choice}
        for method, trial in tuning.chosen.items()
    }
    with speaking_of(path):
        former = tomllib.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        merged = {**former, dataset: dict(sorted({**former.get(dataset, {}), **chosen}.items()))}
        write_whole(path, f"{HEAD}\n{tomli_w.dumps(dict(sorted(merged.items())))}".encode())
    return chosen
