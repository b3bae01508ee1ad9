"""`fedsat tune`: what it prints, writes and repeats."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.calling import SMALL, fedsat


def test_tune(capsys: pytest.CaptureFixture[str]) -> None:
    call = ["tune", *SMALL, "--rounds", "1", "--methods", "fedavg,fedsat", "--jobs", "1", "--out", "found"]
    call += ["--grid", "lr=0.02,0.1", "--grid", "gamma=0.5,0.9"]
    code, out, err = fedsat(capsys, *call)
    assert (code, err) == (0, "")
    assert "fedsat tries 2 of its 4 choices, as many as the other methods" in out
    assert "held out; the best of each method is bold. 2 trials for each method." in " ".join(out.split())
    assert out.rstrip().endswith(
        "best fedavg: found/best/fedavg.toml\nbest fedsat: found/best/fedsat.toml\ntable: found/tuning.csv"
    )
    table = Path("found/tuning.csv").read_text()
    code, out, _ = fedsat(capsys, *call)
    assert "4 of 4 runs are done already" in out
    assert Path("found/tuning.csv").read_text() == table
    assert fedsat(capsys, "run", "found/best/fedsat.toml", "--out", "final")[0] == 0
    assert "holdout = 0.0" in Path("final/config.toml").read_text()


def test_tune_without_a_grid(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = fedsat(capsys, "tune", *SMALL, "--methods", "fedavg")
    assert (code, err.count("\n")) == (2, 1)
    assert "the grid gives fedavg nothing to choose from" in err


def test_a_trial_that_diverges(capsys: pytest.CaptureFixture[str]) -> None:
    call = ["tune", *SMALL, "--rounds", "1", "--methods", "fedavg", "--out", "found", "--grid", "lr=1e30,0.05"]
    code, out, err = fedsat(capsys, *call)
    assert (code, err.count("\n")) == (1, 1)
    assert "1 of 2 runs failed: fedavg-lr=1e+30-seed0" in err
    assert "best fedavg: found/best/fedavg.toml" in out


def test_data_show_has_a_long_tail(capsys: pytest.CaptureFixture[str]) -> None:
    call = ["data", "show", "mnist-mini", "--partition", "hsu", "--beta", "0.1", "--imbalance", "20", "--clients", "9"]
    code, out, _ = fedsat(capsys, *call)
    assert code == 0
    assert "note: imbalance 20: the classes have 592 to 29 training samples" in out
    assert next(line for line in out.splitlines() if "samples per class" in line).split()[-3:] == ["29", "134", "592"]
    assert Path("mnist-mini-hsu.png").stat().st_size > 10_000
