"""Every table and figure of the paper as data: the runs that it needs, and the numbers that it prints.

A study is a list of cells. Most cells are rows of a file in `printed/`: the columns that are settings define the run,
and the others are the paper's numbers. The cells of figures without numbers are all pairs of settings and methods.
"""

from __future__ import annotations

import csv
import itertools
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from fedsat.algorithms import algorithms
from fedsat.errors import UsageError, unknown
from fedsat.experiment.config import Config
from fedsat.experiment.parts import method_parts
from fedsat.experiment.settings import override
from reproduction.variants import CHOICE, DEFAULTS, fits, read_variant

METHODS = ("elastic", "fedavg", "fedavgm", "feddyn", "fedlada", "fedlc", "fedprox", "moon", "scaffold", "fedsat")
"""The methods that the paper compares."""

SETTINGS: dict[str, tuple[str, type]] = {
    "dataset": ("dataset", str),
    "model": ("model", str),
    "width": ("model.width", int),
    "partition": ("partition", str),
    "lr": ("lr", float),
    "classes_per_client": ("partition.classes_per_client", int),
    "min_classes": ("partition.classes_per_client", int),
    "workers": ("workers", int),
    "rounds": ("rounds", int),
    "clients": ("clients", int),
    "per_round": ("per_round", int),
}
"""Columns of the paper's tables and of our studies: the setting of each, and its type."""

ROUNDS = {"mlp": 200, "lenet5": 200, "resnet8": 400, "resnet18": 250}
"""The paper's number of rounds by model, unless a figure has its own."""

TUNED = Path(str(files("reproduction") / "tuned.toml"))
"""The options that the tuning chose for each method on each dataset."""

SMALL_LR = 0.001
"""The paper's smaller learning rate, for which η_g is tuned as well."""

AVERAGE = 0.8
"""Decay of the running mean of the global models, which is reported for every method next to the last model."""

COMPONENTS = {"base": ("psl", "pwa"), "base+psl": ("pwa",), "base+pwa": ("psl",), "fedsat": ()}
"""The rows of the ablation: the parts that FedSat is run without."""

SCALES = {
    "smoke": "a few rounds on the built-in digits with narrow networks, to check that everything works",
    "short": "the paper's protocol with at most 100 rounds",
    "full": "the paper's protocol",
}


@dataclass(frozen=True, eq=False)
class Study:
    """One table or figure."""

    name: str
    title: str
    file: str | None = None
    """The paper's numbers, in `printed/`; a figure may print none."""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """Settings of all cells."""
    by_dataset: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Settings that the table does not state, inferred from the numbers of other tables."""
    panels: Sequence[Mapping[str, Any]] = ()
    """For a figure without numbers: the settings of its panels, each with all contenders."""
    contenders: Sequence[str] = METHODS
    """The methods that are compared in the panels."""
    contender: str = "method"
    """The column whose values are compared with each other under the same setting."""
    champion: str = "fedsat"
    """The contender that leads according to the paper."""
    measures: tuple[str, ...] = ("accuracy",)
    """The columns with numbers."""
    scale: str = "full"
    """The scale at which its results count."""
    seed: int = 0
    """The first seed of its runs."""


@dataclass(frozen=True)
class Cell:
    """One method under one setting of a study."""

    contender: str
    setting: tuple[tuple[str, Any], ...]
    """The columns that distinguish this setting from the study's others."""
    printed: Mapping[str, float] = field(default_factory=dict)
    """The paper's numbers in per cent; a figure may have several per cell."""

    @property
    def where(self) -> str:
        """The setting in words."""
        return ", ".join(
            str(v) if key in ("dataset", "model", "partition") else f"{key}={v}" for key, v in self.setting
        )


def _lsmc(dataset: str, model: str, counts: Iterable[int]) -> list[dict[str, Any]]:
    return [{"dataset": dataset, "model": model, "classes_per_client": count} for count in counts]


NARROW = {"model": "resnet8", "width": 16, "rounds": 40}
"""Our own studies have many runs, so their ResNet-8 has a quarter of the paper's channels and a tenth of its rounds."""


STUDIES = {
    study.name: study
    for study in (
        Study("table-ls", "label skew", "table_ls.csv", {"partition": "ls"}),
        Study("table-lsmc", "label skew with missing classes", "table_lsmc.csv", {"partition": "lsmc"}),
        Study("table-lqsmc", "label and quantity skew, missing classes", "table_lqsmc.csv", {"partition": "lqsmc"}),
        Study(
            "table-workers",
            "FedSat by the number of workers",
            "table_workers.csv",
            {"partition": "ls"},
            # The columns w = 15 are numbers of table-ls, which shows model and rate.
            by_dataset={
                "mnist": {"model": "lenet5", "lr": 0.01},
                "cifar10": {"model": "resnet8", "lr": 0.001},
                "cifar100": {"model": "resnet18", "lr": 0.001},
            },
            contender="workers",
            champion="15",
        ),
        Study(
            "table-ablation",
            "FedSat's parts",
            "table_ablation.csv",
            # CIFAR's full FedSat is table-ls at rate 0.01; MNIST's number is in no other table.
            {"partition": "ls", "lr": 0.01},
            contender="components",
        ),
        Study(
            "figure-convergence",
            "accuracy over rounds with missing classes",
            fixed={"partition": "lsmc"},
            panels=[
                *_lsmc("mnist", "lenet5", (2, 4, 6)),
                *_lsmc("cifar10", "resnet8", (2, 4, 6)),
                *_lsmc("cifar100", "resnet8", (20, 40, 60)),
            ],
        ),
        Study(
            "figure-clients",
            "lowest and highest accuracy of a client",
            "figure_client_accuracy.csv",
            {"partition": "lsmc", "client_accuracy": "test-split"},
            measures=("min_accuracy", "max_accuracy"),
        ),
        Study(
            "figure-classes",
            "accuracy of each class, two classes per client",
            "figure_classwise_cifar10.csv",
            {"partition": "lsmc", "dataset": "cifar10", "model": "resnet8", "partition.classes_per_client": 2},
        ),
        Study(
            "figure-scalability",
            "accuracy over rounds by clients and sample",
            fixed={"partition": "lsmc", "dataset": "cifar10", "model": "resnet8", "partition.classes_per_client": 2},
            panels=[{"clients": n, "per_round": s} for n, s in itertools.product((200, 100), (15, 10))],
        ),
        Study(
            "choice",
            "ours: the choice of FedSat's defaults",
            panels=[
                {"dataset": "mnist", "model": "mlp", "partition": "lsmc", "classes_per_client": 2},
                {"dataset": "mnist", "model": "lenet5", "partition": "lsmc", "classes_per_client": 2},
                {"dataset": "cifar10", "model": "resnet8", "partition": "lsmc", "classes_per_client": 2},
                {"dataset": "cifar10", "model": "resnet8", "partition": "ls"},
                {"dataset": "mnist", "model": "mlp", "partition": "ls", "lr": SMALL_LR},
            ],
            contenders=CHOICE,
            contender="variant",
            scale="short",
            seed=100,  # the tables have seeds from 0
        ),
        Study(
            "defaults",
            "ours: FedSat's options one by one",
            panels=[
                {"dataset": "mnist", "model": "mlp", "partition": "lsmc", "classes_per_client": 2},
                {"dataset": "cifar10", **NARROW, "partition": "ls"},
                {"dataset": "cifar10", **NARROW, "partition": "lsmc", "classes_per_client": 2},
                {"dataset": "mnist", "model": "mlp", "partition": "lqsmc", "min_classes": 2},
                {"dataset": "cifar100", **NARROW, "partition": "lsmc", "classes_per_client": 20},
            ],
            contenders=DEFAULTS,
            contender="variant",
            scale="short",
        ),
    )
}


def find(name: str) -> Study:
    """Return the study called `name`."""
    if name not in STUDIES:
        raise unknown("table or figure", name, STUDIES)
    return STUDIES[name]


@cache
def cells(study: Study) -> list[Cell]:
    """Return the cells of a study, in the paper's order."""
    if study.file is None:
        pairs = itertools.product(study.panels, study.contenders)
        return [Cell(name, tuple(panel.items())) for panel, name in pairs if fits(name, panel)]
    found: dict[tuple[str, tuple[tuple[str, Any], ...]], dict[str, float]] = {}
    for row in _printed_rows(study.file):
        contender = row[study.contender] if study.contender != "method" else row["method"].lower()
        setting = tuple((key, _typed(key, row[key])) for key in row if key in SETTINGS and key != study.contender)
        found.setdefault((contender, setting), {}).update(_numbers(study, row))
    return [Cell(contender, setting, printed) for (contender, setting), printed in found.items()]


def _printed_rows(file: str) -> list[dict[str, str]]:
    text = (files("reproduction") / "printed" / file).read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))


def _typed(key: str, text: str) -> Any:
    return SETTINGS[key][1](text)


def _numbers(study: Study, row: Mapping[str, str]) -> dict[str, float]:
    """Return the paper's numbers in a row by measure or class, in per cent."""
    if "class" in row:
        return {f"class {row['class']}": float(row["accuracy"])}
    scale = 100 if study.name == "figure-clients" else 1
    return {measure: round(scale * float(row[measure]), 2) for measure in study.measures}


def select(study: Study, only: Mapping[str, Sequence[str]], also: Sequence[str] = ()) -> list[Cell]:
    """Return the cells that `only` selects, and cells of further methods, `also`, in the same settings."""
    chosen = list(cells(study))
    if also and study.contender != "method":
        raise UsageError(f"{study.name} compares by {study.contender}, not methods; --also cannot add to it")
    settings = dict.fromkeys(cell.setting for cell in chosen)
    chosen += [Cell(method, setting) for setting in settings for method in also]
    known = {study.contender, *(key for cell in chosen for key, _ in cell.setting)}
    added = [method.lower() for method in also]
    for key, values in only.items():
        if key not in known:
            raise unknown(f"column of {study.name}:", key, known)
        more = added if key == study.contender else []
        there = {_column(study, cell, key) for cell in cells(study)} | set(more)
        for value in values:
            if _meant(study, key, value) not in there:
                raise unknown(f"{key} of {study.name}:", value, map(str, there - {None}))
        wanted = {*more, *(_meant(study, key, value) for value in values)}
        chosen = [cell for cell in chosen if _column(study, cell, key) in wanted]
    if not chosen:
        raise UsageError(f"no cell of {study.name} matches --only")
    return chosen


def _column(study: Study, cell: Cell, key: str) -> Any:
    """Return a cell's value in a column; None if it does not have the column."""
    return cell.contender.lower() if key == study.contender else dict(cell.setting).get(key)


def _meant(study: Study, key: str, text: str) -> Any:
    """Parse a value that a user wrote: convert numbers, and ignore the case of names."""
    try:
        return text.lower() if key == study.contender else _typed(key, text.lower())
    except ValueError as error:
        raise UsageError(f"{key} is {text!r}; it must be a number") from error


def configure(study: Study, cell: Cell, scale: str, seed: int, settings: Sequence[tuple[str, Any]] = ()) -> Config:
    """Return the configuration of a cell; `settings` override everything else."""
    row = dict(cell.setting)
    asked = {**study.fixed, **study.by_dataset.get(row.get("dataset", ""), {})}
    asked |= {SETTINGS[key][0]: value for key, value in row.items()}
    if study.contender == "workers":
        asked["workers"] = int(cell.contender)
    method, changed = _contender(study, cell, asked["dataset"])
    named, on, off = method_parts(method)
    asked = {"rounds": ROUNDS[asked["model"]], "average": AVERAGE, **asked, **dict(named), "seed": seed}
    table = override(override({}, _scaled(asked, scale).items(), on, off), changed)
    return Config.of(override(override(table, settings), (), (), COMPONENTS.get(cell.contender, ())))


def _contender(study: Study, cell: Cell, dataset: str) -> tuple[str, list[tuple[str, Any]]]:
    """Return the method of a cell and its changed options: those of its variant, or those tuned for the dataset."""
    if study.contender == "variant":
        method, settings = read_variant(cell.contender)
        options = algorithms.options(
            method.partition("-")[0]
        )  # a method's option may be called like one of the optimizer
        return method, [(f"algorithm.{key}" if key in options else key, value) for key, value in settings]
    method = cell.contender if study.contender == "method" else "fedsat"
    places = [dataset, f"{dataset}-small-lr"] if dict(cell.setting).get("lr") == SMALL_LR else [dataset]
    return method, [option for place in places for option in tuned_options(place, method)]


def tuned_options(place: str, method: str) -> list[tuple[str, Any]]:
    """Return the options that the tuning chose for a method, in one of the settings of the tuning."""
    tuned = tomllib.loads(TUNED.read_text(encoding="utf-8"))
    return [(f"algorithm.{key}", value) for key, value in tuned.get(place, {}).get(method, {}).items()]


def _scaled(asked: Mapping[str, Any], scale: str) -> dict[str, Any]:
    """Return the settings of a cell at a scale."""
    settings = dict(asked)
    if scale == "short":
        settings["rounds"] = min(100, settings["rounds"])
    if scale == "smoke":
        count = settings.get("partition.classes_per_client")
        if count is not None:  # scale from 100 classes to 10
            settings["partition.classes_per_client"] = count if count <= 10 else count // 10
        settings |= {"dataset": "mnist-mini", "rounds": 3, "epochs": 1, "lr": 0.05}
        settings["workers"] = settings.get("workers", 3)
        settings |= {"clients": settings.get("clients", 100) // 5, "per_round": settings.get("per_round", 15) // 5}
        if settings["model"].startswith("resnet"):
            settings["model.width"] = 4
    return settings
