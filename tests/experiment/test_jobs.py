"""The folder of a comparison: a repeated command finds its runs, another experiment gets another folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedsat.experiment.defaults import Given
from fedsat.experiment.jobs import Job, batch_folder, plan
from tests.support.made_runs import make_run

FEDERATION = [("clients", 30), ("per_round", 5), ("rounds", 12)]


def jobs(methods: Sequence[str], *settings: tuple[str, Any], seeds: int = 1) -> list[Job]:
    return plan(Given([*FEDERATION, *settings]), methods, seeds, [], [])


def test_every_experiment_has_its_folder(tmp_path: Path) -> None:
    first, second = tmp_path / "mnist-mini-lsmc-compare", tmp_path / "mnist-mini-lsmc-compare-2"
    assert batch_folder(tmp_path, "compare", jobs(["fedavg", "fedsat"])) == first
    make_run(first / "fedavg-seed0", algorithm="fedavg")
    # Methods, their options, and seeds may differ, and so may what affects no number.
    assert batch_folder(tmp_path, "compare", jobs(["fedsat"], seeds=2)) == first
    assert batch_folder(tmp_path, "compare", jobs(["fedprox"], ("engine", "sequential"))) == first
    assert batch_folder(tmp_path, "compare", jobs(["fedsat"], ("seed", 5))) == first
    other = jobs(["fedavg", "fedsat"], ("lr", 0.5))
    assert batch_folder(tmp_path, "compare", other) == second
    make_run(second / "fedavg-seed0", algorithm="fedavg", lr=0.5)
    assert batch_folder(tmp_path, "compare", other) == second
