"""A search for settings: without test data, with the same number of trials for every method, and resumable."""

from __future__ import annotations

import csv
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedsat
from fedsat.data import Dataset, Split
from fedsat.errors import UsageError
from fedsat.experiment.samplers import GridSampler, OptunaSampler
from fedsat.report.tuning import Tuning
from tests.support.federations import tiny_dataset

TINY: dict[str, Any] = {
    "clients": 10, "per_round": 3, "workers": 2, "rounds": 2, "epochs": 1, "device": "cpu", "partition": "iid",
}  # fmt: skip
GRID = {"lr": [0.02, 0.1], "mu": [0.1, 1.0]}


def scores(tuning: Tuning) -> list[dict[int, float]]:
    return [dict(trial.scores) for trial in tuning.trials]


def test_the_test_set_is_not_used() -> None:
    """A test set with other samples and labels changes nothing, but would change an ordinary run."""
    whole = tiny_dataset(120)
    images = np.full_like(whole.test.images, 1e9)
    poisoned = replace(whole, test=Split(images, np.zeros(len(images), np.int64)))

    def tune(dataset: Dataset) -> Tuning:
        return fedsat.tune(["fedavg", "fedsat"], grid={"lr": [0.02, 0.1]}, dataset=dataset, **TINY)

    assert scores(tune(whole)) == scores(tune(poisoned))
    metrics = [fedsat.run(dataset=each, **TINY).summary["balanced_accuracy"] for each in (whole, poisoned)]
    assert metrics[0] != metrics[1]


def test_a_score_is_the_metric_on_what_is_held_out() -> None:
    tuning = fedsat.tune("fedavg", grid={"lr": [0.02, 0.1]}, seeds=2, metric="loss", holdout=0.25, **TINY)
    runs = [fedsat.run(algorithm="fedavg", lr=0.1, seed=seed, holdout=0.25, **TINY) for seed in (0, 1)]
    assert tuning.trials[1].scores == {seed: run.summary["last_ten"]["loss"] for seed, run in enumerate(runs)}
    assert tuning.trials[1].score == np.mean(list(tuning.trials[1].scores.values()))
    best = min(tuning.trials, key=lambda trial: trial.score or 0.0)  # a loss is better if it is lower
    assert tuning.chosen == {"fedavg": best}
    assert tuning.best["fedavg"] == replace(best.config, holdout=0.0)
    assert best.config.holdout == 0.25


def test_all_methods_have_as_many_trials() -> None:
    settings = {**TINY, "rounds": 1}
    tuning = fedsat.tune(["fedavg", "fedprox"], grid=GRID, **settings)
    tried = [(trial.method, len(trial.choice)) for trial in tuning.trials]
    assert tried == [("fedavg", 1)] * 2 + [("fedprox", 2)] * 2
    assert len({trial.choice for trial in tuning.trials}) == 4
    with pytest.raises(UsageError, match="trials is 3; it must be from 1 to 2, the choices of fedavg"):
        fedsat.tune(["fedavg", "fedprox"], grid=GRID, trials=3, **settings)
    with pytest.raises(UsageError, match="gives fedavg nothing to choose from"):
        fedsat.tune(["fedavg", "fedprox"], grid={"mu": [0.1, 1.0]}, **settings)


def test_files_and_what_is_there_already(tmp_path: Path) -> None:
    call: dict[str, Any] = {"methods": ["fedavg", "fedprox"], "grid": GRID, "out": tmp_path, **TINY, "rounds": 1}
    tuning = fedsat.tune(**call)
    with (tmp_path / "tuning.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["method"] for row in rows] == ["fedavg", "fedavg", "fedprox", "fedprox"]
    assert [float(row["balanced_accuracy_mean"]) for row in rows] == [trial.score for trial in tuning.trials]
    assert [row["chosen"] for row in rows].count("True") == 2
    config = fedsat.Config.of(tomllib.loads((tmp_path / "best" / "fedprox.toml").read_text()))
    assert config == tuning.best["fedprox"]
    assert config.holdout == 0
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/summary.json")}
    next(iter(before)).unlink()  # as if one run had been interrupted
    assert scores(fedsat.tune(**call)) == scores(tuning)
    after = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/summary.json")}
    assert len(after) == len(before) == 4
    assert len(after.items() & before.items()) == 3


def test_a_trial_that_fails_is_not_chosen() -> None:
    with pytest.warns(UserWarning, match=r"fedavg-lr=1e\+30-seed0 failed: round 1"):
        tuning = fedsat.tune("fedavg", grid={"lr": [1e30, 0.05]}, **TINY)
    assert tuning.trials[0].score is None
    assert tuning.best["fedavg"].lr == 0.05
    assert repr(tuning).splitlines()[1].split()[:3] == ["fedavg", "1e+30", "failed"]
    assert "0.05" in next(line for line in repr(tuning).splitlines() if "*" in line)
    assert "<b>" in tuning._repr_html_()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"metric": "balanced_acuracy"}, "did you mean 'balanced_accuracy'"),
        ({"metric": "recall"}, "unknown metric"),
        ({"sampler": "tpe"}, "unknown sampler"),
        ({"holdout": 0.0}, "holdout is 0; a search needs samples to choose by"),
        ({"holdout": 1.0}, "below 1"),
        ({"grid": {"holdout": [0.1, 0.2]}}, "choices are compared on the same data"),
        ({"grid": {"lr": [0.1, 0.2, 0.1]}}, "the grid has lr=0.1 twice"),
        ({"grid": {"gama": [0.1, 0.2]}}, "gama"),
    ],
)
def test_what_cannot_be_searched(given: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        fedsat.tune(**{"methods": "fedsat", "grid": {"lr": [0.1, 0.2]}, **TINY, **given})


def test_random_choices_are_distinct_and_seeded() -> None:
    assert GridSampler(4, 4, seed=1).propose({}) == [0, 1, 2, 3]
    drawn = [tuple(GridSampler(50, 5, seed).propose({})) for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert len(set(drawn[0])) == 5
    assert GridSampler(4, 2, seed=1).propose({0: 0.5, 1: None}) == []


def test_optuna_tries_each_choice_once_and_finds_the_best() -> None:
    pytest.importorskip("optuna")

    def search(trials: int) -> list[int]:
        sampler, found = OptunaSampler([4, 5], trials, seed=0, higher_is_better=True), dict[int, float | None]()
        while asked := sampler.propose(found):
            for number in asked:
                assert number not in found
                found[number] = None if number == 3 else -float(abs(number - 17))
        return list(found)

    assert sorted(search(20)) == list(range(20))
    assert 17 in search(14)
    assert search(6) == search(14)[:6]
