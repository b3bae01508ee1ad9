"""The tuning of the reproduction: a search on held-out samples whose choices the tables use."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from fedsat.experiment.tuning import Trial
from fedsat.metrics import METRICS
from fedsat.report.tuning import Tuning
from reproduction import studies
from reproduction.studies import METHODS, STUDIES, Cell, configure, select
from reproduction.tuning import GRIDS, SEED, read_rows, rows_of, search_of, tuning_table, write_choices, write_rows
from tests.support.calling import reproduction as fedsat


def test_every_method_has_as_many_trials_and_sees_no_test_data() -> None:
    search = search_of("cifar10")
    assert search.trials == 3
    assert [contender.method for contender in search.contenders] == list(GRIDS)
    for contender in search.contenders:
        assert len(contender.choices) == search.trials
        (job,) = contender.jobs(contender.choices[0])
        assert (job.config.holdout, job.config.seed, job.config.rounds) == (0.2, SEED, 40)
        assert job.config.model["width"] == 16


def test_every_method_tries_the_same_server_steps_at_the_small_rate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "tuned.toml"
    path.write_text("[mnist.fedprox]\nmu = 0.5\n[mnist-small-lr.fedprox]\nserver_lr = 3.0\n")
    monkeypatch.setattr(studies, "TUNED", path)
    search = search_of("mnist-small-lr")
    assert [contender.method for contender in search.contenders] == list(METHODS)
    for contender in search.contenders:
        tables = [contender.jobs(choice)[0].config.table() for choice in contender.choices]
        steps = [table["algorithm"]["server_lr"] for table in tables]
        assert steps == ([1.0] * 3 if contender.method == "feddyn" else [1.0, 2.0, 3.0])  # FedDyn's is always 1
        assert {(table["dataset"], table["lr"], table["partition"]["name"]) for table in tables} == {
            ("mnist", 0.001, "ls")
        }
        if contender.method == "fedprox":
            assert {table["algorithm"]["mu"] for table in tables} == {0.5}  # what was tuned before stays

    study = STUDIES["table-ls"]
    for lr, server_lr in (("0.001", 3.0), ("0.01", 1.0)):
        (cell,) = select(study, {"dataset": ["mnist"], "model": ["mlp"], "lr": [lr], "method": ["fedprox"]})
        algorithm = configure(study, cell, "full", 0).table()["algorithm"]
        assert (algorithm["mu"], algorithm["server_lr"]) == (0.5, server_lr)


def trials(method: str, option: str, scores: dict[float, float | None]) -> list[Trial]:
    """Return made-up trials of a method; a score of None is a failure."""
    contender = search_of("mnist", [method]).contenders[0]
    found = []
    for value, score in scores.items():
        choice = ((f"algorithm.{option}", value),)
        (job,) = contender.jobs(choice)
        error = None if score is not None else "diverged"
        found.append(Trial(method, choice, job.config, {SEED: score or 0.0}, 1.0, error))
    return found


def test_the_best_of_a_grid_is_chosen_and_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = trials("fedprox", "mu", {0.01: 0.91, 0.1: 0.93, 1.0: 0.92})
    done += trials("fedsat:paper", "weighting.sigma", {1.0: None, 2.0: 0.7})
    path = tmp_path / "tuned.toml"
    path.write_text("[cifar10.moon]\nmu = 5.0\n[mnist.moon]\nmu = 0.1\n")
    chosen = write_choices(path, "mnist", Tuning(done, METRICS["accuracy"]))
    assert chosen == {"fedprox": {"mu": 0.1}, "fedsat:paper": {"weighting.sigma": 2.0}}
    assert tomllib.loads(path.read_text()) == {
        "cifar10": {"moon": {"mu": 5.0}},  # kept
        "mnist": {"moon": {"mu": 0.1}, **chosen},
    }
    monkeypatch.setattr(studies, "TUNED", path)
    study = STUDIES["figure-convergence"]
    (cell,) = select(study, {"dataset": ["mnist"], "method": ["fedprox"], "classes_per_client": ["2"]})
    assert configure(study, cell, "full", 0).table()["algorithm"]["mu"] == 0.1
    as_printed = configure(study, Cell("fedsat:paper", cell.setting), "full", 0)
    assert as_printed.table()["algorithm"]["weighting"]["sigma"] == 2.0


def test_trials_are_kept_by_method_and_dataset(tmp_path: Path) -> None:
    path = tmp_path / "results" / "tuning.csv"
    first = Tuning(trials("fedprox", "mu", {0.01: 0.91, 0.1: 0.93}), METRICS["accuracy"])
    write_rows(path, rows_of("cifar10", first))
    write_rows(path, rows_of("mnist", first))
    again = Tuning(trials("fedprox", "mu", {0.01: None, 0.1: 0.5}), METRICS["accuracy"])
    write_rows(path, rows_of("mnist", again))
    rows = read_rows(path)
    assert [(row["dataset"], row["accuracy"]) for row in rows] == [
        ("cifar10", "91.00"), ("cifar10", "93.00"), ("mnist", ""), ("mnist", "50.00"),
    ]  # fmt: skip
    assert {row["judged_on"] for row in rows} == {"20 % of the training data"}
    assert tuning_table([row for row in rows if row["dataset"] == "mnist"])[2:] == [
        "| fedprox | mu=0.01: failed, **mu=0.1: 50.00** |"
    ]


def test_the_command_searches_and_writes_its_choice(capsys: pytest.CaptureFixture[str]) -> None:
    small = "dataset=mnist-mini rounds=1 epochs=1 clients=20 per_round=3 workers=1".split()
    settings = [word for setting in small for word in ("--set", setting)]
    code, out, _ = fedsat(capsys, "tune", "mnist", "--methods", "fedprox", "--tuned", "tuned.toml", *settings)
    assert code == 0
    (chosen,) = [row for row in read_rows(Path("results/tuning.csv")) if row["chosen"]]
    value = float(chosen["setting"].removeprefix("algorithm.mu="))
    assert tomllib.loads(Path("tuned.toml").read_text()) == {"mnist": {"fedprox": {"mu": value}}}
    assert f"mnist  fedprox  mu={value}" in out
