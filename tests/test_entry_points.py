"""Parts that installed packages offer: found by name, imported when used, and unable to break fedsat's own parts."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedsat import data
from fedsat.algorithms import Algorithm, FedAvg, algorithms, objectives
from fedsat.errors import UsageError
from fedsat.experiment.parts import method_parts, part_names
from fedsat.metrics import find_metrics
from tests.cli.test_completion import complete
from tests.support.calling import fedsat as call
from tests.support.packages import installed

MODULE = '''
from dataclasses import dataclass
import numpy as np
from fedsat import Algorithm, Dataset, Objective

@dataclass(frozen=True)
class Mine(Algorithm):
    """A method of somebody else."""
    strength: float = 0.5

@dataclass(frozen=True)
class Stranger(Algorithm):
    """Not what it is called."""

@dataclass(frozen=True)
class Loss(Objective):
    """A loss of somebody else."""

def patients():
    x = np.arange(48, dtype=np.float32).reshape(24, 2)
    return Dataset.from_arrays(x, np.arange(24) % 2)

def hits(evaluation):
    return float(np.trace(evaluation.confusion))
'''
GROUPS = {
    "fedsat.methods": {
        "mine": "tiny_parts:Mine",
        "fedavg": "tiny_parts:Stranger",
        "broken": "tiny_parts.broken:Gone",
        "no-method": "tiny_parts:Loss",
    },
    "fedsat.objectives": {"their-loss": "tiny_parts:Loss"},
    "fedsat.datasets": {"patients": "tiny_parts:patients", "mnist": "tiny_parts:patients"},
    "fedsat.metrics": {"hits": "tiny_parts:hits"},
}


@pytest.fixture(autouse=True)
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "site"
    (folder / "tiny_parts").mkdir(parents=True)
    (folder / "tiny_parts" / "__init__.py").write_text(MODULE, encoding="utf-8")
    (folder / "tiny_parts" / "broken.py").write_text("raise RuntimeError('no licence\\nfor it')\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    with installed(folder, "tiny-parts", GROUPS):
        yield folder


def test_names_are_listed_without_importing_the_package() -> None:
    assert {"mine", "broken", "fedsat"} <= set(algorithms)
    assert [*algorithms].count("fedavg") == 1
    assert "their-loss" in part_names()
    assert method_parts("fedsat+their-loss-correction") == ([("algorithm", "fedsat")], ["their-loss"], ["correction"])
    assert "tiny_parts" not in sys.modules


def test_a_part_is_built_by_name_and_keeps_it() -> None:
    part = algorithms.build({"name": "mine", "strength": 0.25})
    assert (type(part).__name__, vars(part)["strength"]) == ("Mine", 0.25)
    assert algorithms.name_of(part) == "mine"
    assert algorithms.complete("mine")["strength"] == 0.5
    assert objectives.name_of(objectives.build("their-loss")) == "their-loss"


def test_names_of_fedsat_keep_their_meaning() -> None:
    assert algorithms.entry("fedavg").part is FedAvg
    stranger = algorithms.build("tiny_parts:Stranger")
    assert algorithms.name_of(stranger) == "tiny_parts:Stranger"
    assert data.catalog.info("mnist").train_size == 60000


def test_what_cannot_be_used_is_one_line_that_names_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = call(capsys, "run", "--algorithm", "broken")
    assert code == 2
    what = "cannot load the algorithm 'broken' (tiny_parts.broken:Gone) of the package tiny-parts"
    assert err == f"fedsat: {what}: RuntimeError: no licence\n"
    with pytest.raises(
        UsageError, match=r"'no-method' of the package tiny-parts cannot be used as algorithm: it is not"
    ):
        algorithms.build("no-method")
    assert isinstance(algorithms.build("mine"), Algorithm)  # the others still work


def test_lists(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    code, out, _ = call(capsys, "list", "methods")
    assert code == 0
    assert "A method of somebody else. (package tiny-parts)" in out
    assert "strength = 0.5" in out
    assert "of the package tiny-parts: RuntimeError: no licence" in out
    assert "scaffold" in out.partition("no licence")[2]  # the table of state and traffic follows
    assert "made by the package tiny-parts" in call(capsys, "list", "datasets")[1]
    assert "hits" in call(capsys, "list", "metrics")[1]


def test_a_dataset() -> None:
    dataset = data.load("patients")
    assert (dataset.name, len(dataset.train)) == ("patients", 20)
    with pytest.raises(UsageError, match="did you mean 'patients'"):
        data.load("patient")
    with pytest.raises(UsageError, match="made by the package tiny-parts; fedsat neither downloads"):
        data.get("patients")


def test_a_metric() -> None:
    (metric,) = find_metrics(["hits"])
    assert metric.name == "hits"


def test_shells_complete_the_names(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(package), *sys.path]))
    assert complete("run", "--with", "psl,the") == ["psl,their-loss"]
