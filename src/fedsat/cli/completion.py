"""What the shell completes when the user presses Tab.

A shell starts the program for every Tab. Importing torch would take more than a second each time, so commands are not
imported for completion. The names of their options and values are listed here instead, and
`tests/cli/test_completion.py` compares them with the commands and the registries.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any

import typer

from fedsat.cli.sections import NODES, SECTIONS, flag
from fedsat.entry_points import offers

ALGORITHMS = [
    "fedsat",
    "fedsat:paper",
    "fedsat:robust",
    "fedavg",
    "fedavgm",
    "feddyn",
    "fedlada",
    "fedlc",
    "fedprox",
    "elastic",
    "moon",
    "scaffold",
    "fedacg",
    "fedcm",
    "feddisco",
    "fedlesam",
    "fedntd",
    "fedrs",
    "fedsam",
    "fedvls",
]
DATASETS = ["mnist-mini", "clinics-synthetic", "mnist", "fashion-mnist", "cifar10", "cifar100"]
ATTACKS = [
    "alie",
    "backdoor",
    "free-rider",
    "ipm",
    "kill-class",
    "label-flip",
    "lying-worker",
    "noise",
    "scale",
    "sign-flip",
]
METRICS = [
    "accuracy",
    "balanced_accuracy",
    "loss",
    "worst_class_recall",
    "worst_client_accuracy",
    "client_accuracy_p10",
    "client_accuracy_median",
    "client_accuracy_max",
]
MEASURES = [
    "f1",
    "precision",
    "specificity",
    "mcc",
    "auroc",
    "average_precision",
    "sensitivity_at_90",
    "sensitivity_at_95",
    "sensitivity_at_99",
    "brier",
    "calibration_error",
    "ece",
]
PARTS = [
    "psl",
    "psl-distilled",
    "logit-calibration",
    "ntd",
    "restricted-softmax",
    "vacant-classes",
    "pwa",
    "disco",
    "uniform",
    "median",
    "trimmed-mean",
    "damped-mean",
    "guarded-mean",
    "multi-krum",
]

VALUES: dict[str, list[str]] = {
    "--algorithm": ALGORITHMS,
    "--methods": ALGORITHMS,
    "--dataset": DATASETS,
    "--partition": ["iid", "ls", "lsmc", "lqsmc", "hsu", "shards", "quantity", "natural", "file"],
    "--model": ["mlp", "lenet5", "resnet8", "resnet18", "tabular"],
    "--attack": ["none", *ATTACKS],
    "--privacy": ["none", "local", "central"],
    "--optimizer": ["sgd"],
    "--lr-schedule": ["constant", "exponential", "step", "cosine"],
    "--early-stop": METRICS,
    "--select": [*METRICS, "test:accuracy"],
    "--metrics": [*MEASURES, *(f"worst_class_{name}" for name in MEASURES[:-1] if name != "mcc")],
    "--with": PARTS,
    "--without": [*PARTS, "correction"],
    "--augment": ["none", "crop-flip"],
    "--client-accuracy": ["expected", "test-split", "local"],
    "--engine": ["auto", "stacked", "sequential"],
    "--compile": ["auto", "off"],
    "--precision": ["float32", "bf16", "float64"],
    "--device": ["auto", "cpu", "cuda"],
    "--worker-counts": ["each", "sums"],
    "--test": ["server", "nodes"],
    "--sampler": ["grid", "optuna"],
    "predict --model": ["last", "best", "averaged"],
    "evaluate --model": ["last", "best", "averaged"],
    "export --model": ["last", "best", "averaged"],
    "--to": ["onnx", "torch"],
    "--track": ["tensorboard", "mlflow", "wandb"],
}
"""The values of options, or of an option of one command, for shells.

Where paths are accepted too, shells complete them when no name fits.
"""

OFFERED: dict[str, tuple[str, ...]] = {
    "--algorithm": ("methods",),
    "--methods": ("methods",),
    "--dataset": ("datasets",),
    "--partition": ("partitions",),
    "--model": ("models",),
    "--attack": ("attacks",),
    "--privacy": ("privacy",),
    "--optimizer": ("optimizers",),
    "--lr-schedule": ("schedules",),
    "--early-stop": ("metrics",),
    "--select": ("metrics",),
    "--with": ("objectives", "weightings", "aggregators"),
    "--without": ("objectives", "weightings", "aggregators"),
    "--metrics": ("metrics",),
    "data show": ("datasets",),
    "look": ("datasets",),
}
"""Where packages offer further values of an option, or of a command's argument."""

LISTS = ("--methods", "--with", "--without", "--metrics", "--track")
"""Options whose value is a list, separated by commas."""

REPEATED = ("--set", "--grid", "--callback")
"""Options that can be given more than once."""

PARTITION_OPTIONS = ["--partition", "--classes-per-client", "--beta"]
TABLE_OPTIONS = ["--label", "--client", "--test-column", "--drop", "--hashed"]
RUN_OPTIONS = [flag(setting) for settings in SECTIONS.values() for setting in settings]
NODE_OPTIONS = [flag(setting) for setting in SECTIONS[NODES]]


LOOK_OPTIONS = [
    *PARTITION_OPTIONS,
    *TABLE_OPTIONS,
    "--clients",
    "--per-round",
    "--seed",
    "--image-size",
    "--imbalance",
    "--set",
    "--schema",
    "--out",
]


def _run_options(*, without: Iterable[str], also: Iterable[str]) -> list[str]:
    return [*(option for option in RUN_OPTIONS if option not in without), *also]


OPTIONS: dict[str, list[str]] = {
    "run": _run_options(without=NODE_OPTIONS, also=["--out", "--callback"]),
    "resume": ["--rounds", "--minutes", "--callback"],
    "compare": _run_options(
        without=[*NODE_OPTIONS, "--algorithm", "--with", "--without"],
        also=["--methods", "--seeds", "--grid", "--target", "--jobs", "--out", "--figures", "--table"],
    ),
    "tune": _run_options(
        without=[*NODE_OPTIONS, "--algorithm", "--with", "--without", "--holdout"],
        also=["--methods", "--seeds", "--grid", "--metric", "--trials", "--sampler", "--holdout", "--jobs", "--out"],
    ),
    "federate": _run_options(
        without=[
            "--clients",
            "--engine",
            "--compile",
            "--checkpoint-every",
            "--state-memory",
            "--dropout",
            "--stragglers",
            "--attackers",
            "--attack",
            "--schema",
            "--state-memory",
        ],
        also=["--nodes", "--out"],
    ),
    "supernode": [
        "--key",
        "--authority",
        "--folder",
        "--dataset",
        "--client",
        "--clients",
        "--agreement",
        "--identity",
        "--state",
        "--device",
    ],
    "keys": ["--host", "--nodes", "--days"],
    "superlink": ["--host", "--port", "--control-port", "--state"],
    "predict": ["--model", "--sensitivity", "--keep", "--out"],
    "evaluate": ["--model", "--sensitivity", "--out"],
    "export": ["--to", "--model", "--out"],
    "report": ["--out", "--target", "--figures", "--table"],
    "list": [],
    "status": [],
    "data get": ["--from"],
    "data list": [],
    "data show": LOOK_OPTIONS,
    "look": LOOK_OPTIONS,
}
"""The options of every command."""

ARGUMENTS: dict[str, list[str]] = {
    "list": [
        "datasets",
        "methods",
        "objectives",
        "weightings",
        "aggregators",
        "optimizers",
        "schedules",
        "attacks",
        "privacy",
        "models",
        "partitions",
        "metrics",
    ],
    "data get": DATASETS,
    "data show": DATASETS,
    "look": DATASETS,
}
"""The values of a command's argument; other commands take paths, which the shell completes itself."""


def is_active() -> bool:
    """Whether the shell has started the program to complete a command."""
    return "_FEDSAT_COMPLETE" in os.environ


def stub(path: str) -> Callable[..., None]:
    """Return a function with the options of the command `path`, for typer to complete; it does nothing."""

    def command(**_: Any) -> None:
        """Do nothing."""

    argument = Annotated[list[str] | None, typer.Argument(autocompletion=_among(_values(ARGUMENTS, path)))]
    parameters = [_parameter("argument", argument)]
    for option in OPTIONS[path]:
        values = VALUES.get(f"{path} {option}") or _values(VALUES, option)
        complete = _last_among(values) if option in LISTS else _among(values)
        kind: Any = list[str] | None if option in REPEATED else str | None
        info = typer.Option(option, autocompletion=complete)
        parameters.append(_parameter(option.strip("-").replace("-", "_") + "_", Annotated[kind, info]))
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command


def _values(known: Mapping[str, list[str]], of: str) -> list[str]:
    """Return the values of an option or argument: those of fedsat and of other packages."""
    return list(dict.fromkeys([*known.get(of, []), *(name for group in OFFERED.get(of, ()) for name in offers(group))]))


def _parameter(name: str, annotation: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _among(values: Iterable[str]) -> Callable[[str], list[str]]:
    """Complete one of `values`."""

    def complete(incomplete: str) -> list[str]:
        return [value for value in values if value.startswith(incomplete)]

    return complete


def _last_among(values: Iterable[str]) -> Callable[[str], list[str]]:
    """Complete the last item of a list separated by commas."""

    def complete(incomplete: str) -> list[str]:
        begun, comma, last = incomplete.rpartition(",")
        given = begun.split(",")
        return [f"{begun}{comma}{value}" for value in values if value.startswith(last) and value not in given]

    return complete
