"""`python -m reproduction`: which cells run, which results are stored, and what is shown."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest

from fedsat.experiment.together import train_together
from reproduction.commands import _choice
from reproduction.results import read_results
from tests.support.calling import reproduction as fedsat


def test_paper(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = fedsat(capsys, "list")
    assert code == 0
    assert "figure-scalability" in out
    call = ["run", "table-lsmc", "--only", "model=mlp,classes_per_client=2,method=fedavg,scaffold,fedsat"]
    code, out, _ = fedsat(capsys, *call)
    assert code == 0
    assert "results: runs/paper/table-lsmc-smoke.csv" in out
    assert "3 of 3 runs have their results in" in fedsat(capsys, *call)[1]
    Path("runs/paper/table-lsmc-smoke.csv").unlink()
    assert "3 of 3 runs are done already" in fedsat(capsys, *call)[1]  # the runs themselves are still there
    code, out, _ = fedsat(capsys, "show", "table-lsmc", "--results", "runs/paper")
    assert code == 0
    assert "90.10" in out
    assert "rank correlation with the paper" in out
    assert "these results cannot be compared with the paper" in out


def test_results_are_kept_run_by_run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    path, kept = Path("runs/paper/table-ls-smoke.csv"), []

    def watched(*given: Any, **options: Any) -> Any:
        kept.append([result.line["contender"] for result in read_results(path)])
        return train_together(*given, **options)

    monkeypatch.setattr("fedsat.experiment.batch.train_together", watched)
    only = ["--only", "dataset=mnist,model=mlp,lr=0.01,method=fedavg,fedprox"]
    assert fedsat(capsys, "run", "table-ls", *only)[0] == 0
    assert kept == [[], ["fedavg", "fedavg, averaged"]]
    assert {result.line["contender"] for result in read_results(path)} > {"fedavg", "fedprox"}


def test_results_that_cannot_be_kept_are_known_before_training(capsys: pytest.CaptureFixture[str]) -> None:
    path = Path("runs/paper/table-ls-smoke.csv")
    path.parent.mkdir(parents=True)
    path.write_text("<<<<<<< HEAD\nwhat,ever\n1,2\n")
    only = ["--only", "dataset=mnist,model=mlp,lr=0.01,method=fedavg"]
    code, _, err = fedsat(capsys, "run", "table-ls", *only)
    assert code == 2
    assert "it is not a results file" in err
    assert list(path.parent.glob("*/")) == []


def test_a_run_that_several_cells_show_is_kept_for_each(capsys: pytest.CaptureFixture[str]) -> None:
    assert fedsat(capsys, "run", "table-ls", "--only", "dataset=mnist,model=mlp,method=feddyn")[0] == 0
    lines = [result.line for result in read_results(Path("runs/paper/table-ls-smoke.csv"))]
    shown = [(line["contender"], line["setting"]) for line in lines]
    assert [setting for who, setting in shown if who == "feddyn"] == ["mnist, mlp, lr=0.001", "mnist, mlp, lr=0.01"]
    assert {who for who, _ in shown} == {"feddyn", "feddyn, active-mean", "feddyn, averaged"}
    assert len({line["finished"] for line in lines}) == 1  # smoke has a rate of its own, and α is the same at both


def test_variants_can_be_chosen() -> None:
    chosen = _choice("variant=fedavg,fedsat gamma=1.0,dataset=mnist,cifar10")
    assert chosen == {"variant": ["fedavg", "fedsat gamma=1.0"], "dataset": ["mnist", "cifar10"]}


def test_what_is_missing_is_made_by_the_command_that_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    wanted = ["show", "choice", "--scale", "smoke"]
    command = fedsat(capsys, *wanted)[2].partition("yet; run: ")[2]
    assert command == "python -m reproduction run choice --scale smoke --seed 100\n"
    only = ["--only", "model=mlp,partition=lsmc,variant=fedavg"]
    assert fedsat(capsys, *shlex.split(command)[3:], *only)[0] == 0
    assert fedsat(capsys, *wanted)[0] == 0
    again = fedsat(capsys, *"run choice --scale smoke".split(), *only)[1]
    assert "1 of 1 runs have their results in" in again  # the seed is the study's own


def test_runs_whose_results_are_kept_are_not_run_again(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    call = ["run", "table-ls", "--out", "runs/here", "--results", "kept", "--only"]
    only = "dataset=mnist,model=mlp,lr=0.01,method=fedavg"
    monkeypatch.setattr("sys.argv", ["reproduction/__main__.py", *call, only])
    assert fedsat(capsys, *call, only)[0] == 0
    line, averaged = [result.line for result in read_results(Path("kept/table-ls-smoke.csv"))]
    assert averaged["contender"] == "fedavg, averaged"
    assert line["command"] == f"python -m reproduction run table-ls --only {only}"  # without folders of this machine
    shutil.rmtree("runs")
    out = fedsat(capsys, *call, f"{only},fedprox", "--seeds", "2")[1]
    assert "1 of 4 runs have their results in kept/table-ls-smoke.csv already" in out
    seeds = [(result.line["contender"], result.seed) for result in read_results(Path("kept/table-ls-smoke.csv"))]
    last = [(who, seed) for who, seed in seeds if "averaged" not in who]
    assert last == [("fedavg", 0), ("fedavg", 1), ("fedprox", 0), ("fedprox", 1)]
    # The same cell and seed with other settings, for example after a change of defaults, is another experiment.
    path = Path("kept/table-ls-smoke.csv")
    path.write_text(path.read_text().replace('""server_lr"": 1.0', '""server_lr"": 0.5'))
    code, out, _ = fedsat(capsys, *call, only)
    assert (code, "already" in out) == (0, False)
    assert '""server_lr"": 1.0' in path.read_text()


def test_changed_settings_are_kept_in_full_and_in_one_order(capsys: pytest.CaptureFixture[str]) -> None:
    call = ["run", "table-ls", "--only", "dataset=mnist,model=mlp,lr=0.01,method=fedsat"]
    for changes in (["gamma=0.5", "algorithm.inertia=0.1"], ["inertia=0.1", "algorithm.gamma=0.5"]):
        sets = [word for change in changes for word in ("--set", change)]
        assert fedsat(capsys, *call, *sets, "--set", "device=cpu")[0] == 0
    line, _ = read_results(Path("runs/paper/table-ls-smoke.csv"))
    assert line.line["extra"] == "algorithm.gamma=0.5, algorithm.inertia=0.1"


def test_smoke_results_are_found_without_their_folder(capsys: pytest.CaptureFixture[str]) -> None:
    assert fedsat(capsys, "run", "table-ls", "--only", "dataset=mnist,model=mlp,method=fedavg")[0] == 0
    out = fedsat(capsys, "show", "table-ls")[1]
    assert "2 of 120 cells have results" in out
    assert "58.79" in out  # the paper's FedSat on CIFAR-100, which was not run
    assert "0 of the 420 cells" in out  # smoke is no result


WRONG = [
    (["run", "table-lx"], "did you mean 'table-ls'?"),
    (["run", "table-ls", "--only", "mnist"], "--only takes column=value"),
    (["run", "table-ls", "--scale", "tiny"], "unknown scale"),
    (["show", "table-ls"], "yet; run: python -m reproduction run table-ls --scale full\n"),
    (["show", "defaults", "--scale", "full"], "python -m reproduction run defaults --scale full\n"),
    (["show", "choice", "--results", "a b"], "run choice --scale short --seed 100 --results 'a b'\n"),
    (["tune", "mnist-mini"], "unknown dataset of the tuning 'mnist-mini'"),
    (["tune", "mnist", "--methods", "fedavg"], "unknown tuned method 'fedavg'"),
]


@pytest.mark.parametrize(("arguments", "reason"), WRONG)
def test_wrong_use_is_one_line(capsys: pytest.CaptureFixture[str], arguments: list[str], reason: str) -> None:
    code, _, err = fedsat(capsys, *arguments)
    assert code == 2
    assert reason in err
    assert err.startswith("python -m reproduction: ")
    assert err.count("\n") == 1
