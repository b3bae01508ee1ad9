"""What shells complete is what the commands accept."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import typer.main

from fedsat.algorithms import aggregators, algorithms, objectives, weightings
from fedsat.cli.completion import ARGUMENTS, OPTIONS, REPEATED, VALUES
from fedsat.cli.listing import LISTS
from fedsat.cli.main import app
from fedsat.data import DATASETS, partitions
from fedsat.models import models
from fedsat.rounds import attacks


def commands(group: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    for name in group.commands:
        found = group.commands[name]
        where = f"{path} {name}".strip()
        if hasattr(found, "commands"):
            yield from commands(found, where)
        else:
            yield where, found


COMMANDS = dict(commands(typer.main.get_command(app)))


@pytest.mark.parametrize("path", COMMANDS)
def test_options_of_a_command(path: str) -> None:
    options = [p for p in COMMANDS[path].params if p.param_type_name == "option" and p.name != "help" and not p.hidden]
    assert sorted(OPTIONS[path]) == sorted(option.opts[0] for option in options)
    repeated = {option.opts[0] for option in options if option.multiple}
    assert repeated == {option for option in OPTIONS[path] if option in REPEATED}


def test_every_command_is_known() -> None:
    assert OPTIONS.keys() == COMMANDS.keys()


@pytest.mark.parametrize(
    ("option", "names"),
    [
        ("--algorithm", algorithms), ("--methods", algorithms), ("--model", models), ("--dataset", DATASETS),
        ("--partition", partitions), ("--attack", attacks), ("--with", [*objectives, *weightings, *aggregators]),
    ],
)  # fmt: skip
def test_names_of_parts(option: str, names: Any) -> None:
    defaults = {"cross-entropy", "samples", "mean"} if option == "--with" else set()
    assert {*VALUES[option]} == {*names} - defaults


def test_arguments() -> None:
    assert ARGUMENTS["list"] == [*LISTS]


def complete(*words: str) -> list[str]:
    """What bash shows when the user presses Tab after `words`."""
    line = " ".join(("fedsat", *words))
    environment = {"_FEDSAT_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(words))}
    program = "import sys; from fedsat.cli import main; main([]); assert 'torch' not in sys.modules"
    ended = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )
    assert ended.stderr == ""
    return ended.stdout.split()


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (("re",), ["resume", "report"]),
        (("run", "--algorithm", "fedsat"), ["fedsat", "fedsat:paper", "fedsat:robust"]),
        (("compare", "--methods", "fedavg,sca"), ["fedavg,scaffold"]),
        (("data", "show", "cif"), ["cifar10", "cifar100"]),
        (("report", "--fi"), ["--figures"]),
    ],
)
def test_bash(words: tuple[str, ...], found: list[str]) -> None:
    assert complete(*words) == found
