"""The command line as a user types it."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedsat as package
from fedsat.cli import main
from fedsat.cli.batch import train
from fedsat.cli.paper import _choice
from fedsat.paper.results import read_results
from fedsat.version import __version__
from runs import killed_after, results

SMALL = "--clients 30 --per-round 4 --workers 3 --rounds 3 --epochs 1 --lr 0.05 --classes-per-client 3".split()


def fedsat(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of a call."""
    with pytest.raises(SystemExit) as end:
        main(list(arguments))
    captured = capsys.readouterr()
    code = end.value.code
    assert isinstance(code, int)
    return code, captured.out, captured.err


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("FEDSAT_DATA", str(tmp_path / "cache"))


def test_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert fedsat(capsys, "--version") == (0, f"fedsat {__version__}\n", "")
    code, out, _ = fedsat(capsys)
    assert code == 0
    assert all(command in out for command in ("run", "compare", "data", "list"))
    code, out, _ = fedsat(capsys, "run", "--help")
    for option in (
        "--algorithm --dataset --partition --classes-per-client --beta --clients --per-round --rounds --epochs "
        "--batch-size --lr --model --workers --seed --device --out --set --without --evaluate-every"
    ).split():
        assert option in out
    assert "\\" not in fedsat(capsys, "compare", "--help")[1]  # brackets that somebody escaped for somebody else


def test_run_shows_rounds_and_a_table_and_leaves_files(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = fedsat(capsys, "run", *SMALL)
    assert (code, err) == (0, "")
    assert "round 3/3" in out
    assert "mean of the last ten" in out
    assert "\x1b" not in out  # not a terminal: no colours, no cursor movements
    folder = Path("runs/mnist-mini-lsmc-fedsat-seed0")
    assert f"files: {folder}" in out
    assert json.loads((folder / "summary.json").read_text())["status"] == "completed"
    # Again: nothing is overwritten.
    fedsat(capsys, "run", *SMALL)
    assert Path("runs/mnist-mini-lsmc-fedsat-seed0-2/summary.json").exists()


def test_a_config_file_and_options_over_it(capsys: pytest.CaptureFixture[str]) -> None:
    fedsat(capsys, "run", *SMALL, "--set", "gamma=0.5", "--seed", "7", "--out", "first")
    code, _, _ = fedsat(capsys, "run", "first/config.toml", "--rounds", "1", "--out", "second")
    assert code == 0
    config = tomllib.loads(Path("second/config.toml").read_text())
    assert (config["algorithm"]["gamma"], config["seed"], config["rounds"]) == (0.5, 7, 1)
    assert len(Path("second/metrics.jsonl").read_text().splitlines()) == 1


def test_parts_on_and_off(capsys: pytest.CaptureFixture[str]) -> None:
    fedsat(capsys, "run", *SMALL, "--without", "psl,correction,pwa", "--out", "bare")
    fedsat(capsys, "run", *SMALL, "--algorithm", "fedavg", "--out", "fedavg")
    fedsat(capsys, "run", *SMALL, "--algorithm", "fedavg", "--with", "psl,pwa", "--out", "both")
    models = {name: Path(name, "model.safetensors").read_bytes() for name in ("bare", "fedavg", "both")}
    assert models["bare"] == models["fedavg"] != models["both"]


def test_compare_over_seeds_goes_on_where_it_was(capsys: pytest.CaptureFixture[str]) -> None:
    call = ["compare", *SMALL, "--algorithms", "fedavg,fedsat", "--target", "10", "--out", "both"]
    code, out, _ = fedsat(capsys, *call)
    assert code == 0
    assert "to 10 %" in out
    assert out.rstrip().endswith("page: both/report.html")
    assert Path("both/report.html").read_text().startswith("<!doctype html>")
    stamp = Path("both/fedavg-seed0/summary.json").stat().st_mtime_ns
    # An interrupted run without a checkpoint is not counted and not touched.
    Path("both/fedsat-seed0/summary.json").write_text('{"status": "interrupted"}')
    code, out, _ = fedsat(capsys, *call, "--seeds", "2")
    assert code == 0
    assert "1 of 4 runs are done already" in out
    assert "±" in out
    assert Path("both/fedavg-seed0/summary.json").stat().st_mtime_ns == stamp
    assert json.loads(Path("both/fedsat-seed0/summary.json").read_text()) == {"status": "interrupted"}
    assert {path.name for path in Path("both").iterdir() if path.is_dir()} == {
        "fedavg-seed0", "fedavg-seed1", "fedsat-seed0", "fedsat-seed0-2", "fedsat-seed1",
    }  # fmt: skip
    code, out, _ = fedsat(capsys, *call, "--seeds", "2")
    assert "4 of 4 runs are done already" in out


def test_compare_with_a_grid(capsys: pytest.CaptureFixture[str]) -> None:
    grid = ["--grid", "gamma=0.5,0.9", "--grid", "lr=0.05"]
    code, out, _ = fedsat(capsys, "compare", *SMALL, "--algorithms", "fedavg,fedsat", *grid, "--out", "grid")
    assert code == 0
    assert "fedsat gamma=0.5" in " ".join(out.split())
    assert {path.name for path in Path("grid").iterdir() if path.is_dir()} == {
        "fedavg-lr=0.05-seed0", "fedsat-gamma=0.5-lr=0.05-seed0", "fedsat-gamma=0.9-lr=0.05-seed0",
    }  # fmt: skip


def test_runs_in_processes_come_to_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    def rounds(folder: str, *options: str) -> list[list[dict[str, object]]]:
        wanted = ["--algorithms", "fedavg,fedsat", "--set", "weighting=pwa", "--set", "workers=3"]
        assert fedsat(capsys, "compare", *SMALL, *wanted, *options, "--out", folder)[0] == 0
        files = sorted(Path(folder).glob("*/metrics.jsonl"))
        return [[{**json.loads(line), "seconds": None} for line in file.read_text().splitlines()] for file in files]

    apart = rounds("apart", "--jobs", "2")
    assert len(apart) == 2
    assert apart == rounds("in turn")


def test_a_method_that_diverges_does_not_stop_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    grid = ["--grid", "lr=1e30,0.05"]
    code, out, err = fedsat(capsys, "compare", *SMALL, "--algorithms", "fedavg", *grid, "--out", "both")
    assert (code, err.count("\n")) == (1, 1)
    assert "1 of 2 runs failed: fedavg-lr=1e+30-seed0: round 1, client" in err
    assert "page: both/report.html" in out


def test_report(capsys: pytest.CaptureFixture[str]) -> None:
    fedsat(capsys, "run", *SMALL, "--out", "one")
    code, out, _ = fedsat(capsys, "report", "one", "--figures", "figures", "--out", "pages/one.html")
    assert code == 0
    assert "page: pages/one.html" in out
    page = Path("pages/one.html").read_text()
    assert '"federation":0' in page
    assert len(json.loads(Path("one/summary.json").read_text())["client_accuracies"]) == 30
    names = {path.name for path in Path("figures").iterdir()}
    for (
        name
    ) in "accuracy worst lowest effective clients partition recall-fedsat weights-fedsat confusion-fedsat".split():
        assert {f"{name}.png", f"{name}.svg"} <= names
    assert Path("figures/accuracy.png").read_bytes().startswith(b"\x89PNG")


def test_paper(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = fedsat(capsys, "paper", "list")
    assert code == 0
    assert "figure-scalability" in out
    call = ["paper", "run", "table-lsmc", "--only", "model=mlp,classes_per_client=2,method=fedavg,scaffold,fedsat"]
    code, out, _ = fedsat(capsys, *call)
    assert code == 0
    assert "results: runs/paper/table-lsmc-smoke.csv" in out
    assert "3 of 3 runs have their results in" in fedsat(capsys, *call)[1]
    Path("runs/paper/table-lsmc-smoke.csv").unlink()
    assert "3 of 3 runs are done already" in fedsat(capsys, *call)[1]  # the runs themselves are still there
    code, out, _ = fedsat(capsys, "paper", "show", "table-lsmc", "--results", "runs/paper")
    assert code == 0
    assert "90.10" in out
    assert "rank correlation with the paper" in out
    assert "nothing here can be compared with the paper" in out


def test_results_are_kept_run_by_run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    path, kept = Path("runs/paper/table-ls-smoke.csv"), []

    def watched(*given: Any, **options: Any) -> None:
        kept.append([result.line["contender"] for result in read_results(path)])
        train(*given, **options)

    monkeypatch.setattr("fedsat.cli.batch.train", watched)
    only = ["--only", "dataset=mnist,model=mlp,lr=0.01,method=fedavg,fedprox"]
    assert fedsat(capsys, "paper", "run", "table-ls", *only)[0] == 0
    assert kept == [[], ["fedavg"]]
    assert [result.line["contender"] for result in read_results(path)] == ["fedavg", "fedprox"]


def test_results_that_cannot_be_kept_are_known_before_training(capsys: pytest.CaptureFixture[str]) -> None:
    path = Path("runs/paper/table-ls-smoke.csv")
    path.parent.mkdir(parents=True)
    path.write_text("<<<<<<< HEAD\nwhat,ever\n1,2\n")
    only = ["--only", "dataset=mnist,model=mlp,lr=0.01,method=fedavg"]
    code, _, err = fedsat(capsys, "paper", "run", "table-ls", *only)
    assert code == 2
    assert "it is not a file of results" in err
    assert list(path.parent.glob("*/")) == []


def test_a_run_that_several_cells_show_is_kept_for_each(capsys: pytest.CaptureFixture[str]) -> None:
    assert fedsat(capsys, "paper", "run", "table-ls", "--only", "dataset=mnist,model=mlp,method=fedavg")[0] == 0
    lines = [result.line for result in read_results(Path("runs/paper/table-ls-smoke.csv"))]
    assert [line["setting"] for line in lines] == ["mnist, mlp, lr=0.001", "mnist, mlp, lr=0.01"]
    assert len({line["cell"] for line in lines}) == 1  # smoke has a rate of its own


def test_variants_can_be_chosen() -> None:
    chosen = _choice("variant=fedavg,fedsat gamma=1.0,dataset=mnist,cifar10")
    assert chosen == {"variant": ["fedavg", "fedsat gamma=1.0"], "dataset": ["mnist", "cifar10"]}


def test_what_is_missing_is_made_by_the_command_that_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    wanted = ["paper", "show", "tuning", "--scale", "smoke"]
    command = fedsat(capsys, *wanted)[2].partition("make them with: ")[2]
    assert command == "fedsat paper run tuning --scale smoke --seed 1000 --results results\n"
    only = ["--only", "dataset=mnist,variant=fedlc objective.tau=0.5"]
    assert fedsat(capsys, *shlex.split(command)[1:], *only)[0] == 0
    assert fedsat(capsys, *wanted)[0] == 0
    again = fedsat(capsys, *"paper run tuning --scale smoke".split(), *only)[1]
    assert "1 of 1 runs are done already" in again  # the seed is the tuning's own


def test_runs_whose_results_are_kept_are_not_run_again(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    call = ["paper", "run", "table-ls", "--out", "runs/here", "--results", "kept", "--only"]
    only = "dataset=mnist,model=mlp,lr=0.01,method=fedavg"
    monkeypatch.setattr("sys.argv", ["fedsat", *call, only])
    assert fedsat(capsys, *call, only)[0] == 0
    (line,) = [result.line for result in read_results(Path("kept/table-ls-smoke.csv"))]
    assert line["command"] == f"fedsat paper run table-ls --only {only}"  # without folders of this machine
    shutil.rmtree("runs")
    out = fedsat(capsys, *call, f"{only},fedprox", "--seeds", "2")[1]
    assert "1 of 4 runs have their results in kept/table-ls-smoke.csv already" in out
    seeds = [(result.line["contender"], result.seed) for result in read_results(Path("kept/table-ls-smoke.csv"))]
    assert seeds == [("fedavg", 0), ("fedavg", 1), ("fedprox", 0), ("fedprox", 1)]
    out = fedsat(capsys, *call, only, "--set", "algorithm.server_lr=0.5")[1]
    assert "already" not in out  # another experiment


def test_lists(capsys: pytest.CaptureFixture[str]) -> None:
    expected = {
        "algorithms": ("fedavg", "fedsat-paper", "gamma = 0.9", "γ, strength of the correction"),
        "models": ("mlp", "lenet5", "resnet8", "resnet18", "width = 64"),
        "datasets": ("mnist-mini", "cifar100", "built in"),
        "partitions": ("ls", "lsmc", "lqsmc", "iid", "quantity", "file", "classes_per_client = 2"),
        "objectives": ("psl", "epsilon2 = 2.0"),
        "weightings": ("pwa", "sigma = 2.0"),
    }
    for what, words in expected.items():
        code, out, _ = fedsat(capsys, "list", what)
        assert code == 0
        assert all(word in out for word in words), what


def test_methods_are_listed_with_state_and_traffic(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    code, out, _ = fedsat(capsys, "list", "algorithms")
    assert code == 0
    assert max(map(len, out.splitlines())) <= 100
    rows = [[cell.strip() for cell in line.strip().split("  ") if cell.strip()] for line in out.splitlines()]
    for row in (
        ["fedavg", "–", "–", "1", "1", "samples"],
        ["scaffold", "control", "control", "2", "2", "uniform"],
        ["fedlada", "–", "second moment, direction", "3", "2", "uniform"],
        ["fedsat", "direction", "direction", "2 + w−1", "1", "pwa"],
    ):
        assert row in rows


def test_data_show_draws_and_counts(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = fedsat(
        capsys, "data", "show", "mnist-mini", "--partition", "lsmc", "--classes-per-client", "2", "--clients", "50"
    )
    assert code == 0
    assert "classes of a client" in out
    assert Path("mnist-mini-lsmc.png").read_bytes().startswith(b"\x89PNG")


def test_data_show_draws_a_partition_from_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    Path("mine.csv").write_text("client,index\n" + "".join(f"{index % 7},{index}\n" for index in range(6000)))
    code, out, _ = fedsat(
        capsys, "data", "show", "mnist-mini", "--partition", "file", "--set", "path=mine.csv", "--clients", "7"
    )
    assert code == 0
    assert "857" in out  # 6,000 samples over 7 clients
    assert Path("mnist-mini-file.png").exists()


def test_data_get_from_a_folder(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = fedsat(capsys, "data", "list")
    assert code == 0
    assert "fashion-mnist" in out
    code, _, err = fedsat(capsys, "data", "get", "mnist", "--from", "nowhere")
    assert code == 2
    assert "nowhere" in err


def test_own_data(capsys: pytest.CaptureFixture[str]) -> None:
    Path("mine").mkdir()
    rng = np.random.default_rng(0)
    np.save("mine/images.npy", rng.integers(0, 256, (90, 8, 8), dtype=np.uint8))
    np.save("mine/labels.npy", np.arange(90) % 5)
    code, out, _ = fedsat(capsys, "run", *SMALL, "--clients", "10", "--dataset", "./mine", "--out", "run")
    assert code == 0
    assert "note: " in out  # a sixth is held out for testing, and that is said


WRONG = [
    (["run", "--algorithm", "fedsatt"], "unknown algorithm 'fedsatt'; did you mean 'fedsat'?"),
    (["run", "--dataset", "mnist-mino"], "did you mean 'mnist-mini'?"),
    (["run", "--partition", "lsmcc"], "did you mean 'lsmc'?"),
    (["run", "--model", "lenet"], "did you mean 'lenet5'?"),
    (["run", "--lr", "0"], "lr is 0; it must be above 0"),
    (["run", "--rounds", "x"], "--rounds"),
    (["run", "--set", "gamma"], "--set takes key=value"),
    (["run", "--set", "gamma=x"], "gamma is 'x'; it must be a number"),
    (["run", "--clients", "6001"], "6,001 clients"),
    (["run", "--classes-per-client", "11"], "11 classes"),
    (["run", "--per-round", "101"], "only 100 clients"),
    (["run", "--beta", "0.1"], "beta"),
    (["run", "--without", "everything"], "unknown part to leave out"),
    (["run", "nowhere.toml"], "no configuration file"),
    (["run", "--nothing"], "No such option: --nothing"),
    (["resume", "nowhere"], "nowhere holds no run"),
    (["list", "algorithm"], "did you mean 'algorithms'?"),
    (["compare", "--algorithms", ","], "names no method"),
    (["compare", "--grid", "gama=1,2"], "did you mean 'gamma'?"),
    (["compare", "--grid", "gamma"], "--grid takes key=value"),
    (["compare", "--grid", "gamma="], "gives gamma no value"),
    (["compare", "--seeds", "0"], "--seeds"),
    (["report", "nowhere"], "no folder nowhere"),
    (["paper", "run", "table-lx"], "did you mean 'table-ls'?"),
    (["paper", "run", "table-ls", "--only", "mnist"], "--only takes column=value"),
    (["paper", "run", "table-ls", "--scale", "tiny"], "unknown scale"),
    (["paper", "show", "table-ls"], "make them with: fedsat paper run table-ls --scale full\n"),
    (["paper", "show", "defaults", "--scale", "full"], "fedsat paper run defaults --scale full\n"),
    (["paper", "tune", "--results", "a b"], "run tuning --scale short --seed 1000 --results 'a b'\n"),
    (["jump"], "No such command 'jump'"),
    (["run", "--device", "cuda:99"], "CUDA devices"),
]


@pytest.mark.parametrize(("arguments", "message"), WRONG, ids=[" ".join(case[0]) for case in WRONG])
def test_wrong_use_is_one_line_and_exit_code_2(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    code, _, err = fedsat(capsys, *arguments)
    assert message in err
    assert err.count("\n") == 1
    assert code == 2
    assert not Path("runs").exists()


def test_failures_are_one_line_and_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = fedsat(capsys, "run", "--dataset", "mnist")
    assert (code, err.count("\n")) == (1, 1)
    assert "fedsat data get mnist" in err
    code, _, err = fedsat(capsys, "run", "--dataset", "./nowhere")
    assert (code, err.count("\n")) == (1, 1)
    assert "nowhere" in err
    code, out, err = fedsat(capsys, "run", *SMALL, "--lr", "1e30", "--algorithm", "fedavg", "--out", "run")
    assert (code, err.count("\n")) == (1, 1)
    assert "round 1, client" in err
    assert "0 rounds are kept in run" in out
    assert json.loads(Path("run/summary.json").read_text())["status"] == "failed"


def test_debug_shows_the_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(Exception, match="did you mean 'fedsat'"):
        main(["run", "--algorithm", "fedsatt", "--debug"])


def stopped_by(number: signal.Signals, *options: str) -> tuple[int, str, str]:
    """Exit code and output of a long run that is sent a signal after its second round."""
    process = subprocess.Popen(
        [sys.executable, "-m", "fedsat", "run", "--rounds", "100000", "--out", "run", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    assert process.stdout is not None
    for line in process.stdout:
        if "round 2/" in line:
            process.send_signal(number)
            break
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stopped_run_finishes_its_files(tmp_path: Path, number: signal.Signals, code: int) -> None:
    ended, out, err = stopped_by(number)
    assert (ended, err) == (code, "fedsat: stopped\n")
    assert "rounds are kept in run; fedsat resume run goes on" in out
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["status"] == "interrupted"
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) >= 2
    assert list((tmp_path / "run" / "checkpoints").glob("*.safetensors"))


def any_left(group: int) -> bool:
    """Whether a process of the group is still there."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_runs_in_processes_are_stopped_together(tmp_path: Path, number: signal.Signals, code: int) -> None:
    wanted = ["--algorithms", "fedavg,fedprox,fedsat", "--jobs", "2", "--rounds", "100000", "--out", "many"]
    process = subprocess.Popen(
        [sys.executable, "-m", "fedsat", "compare", *wanted],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 60
    files = [tmp_path / "many" / f"{name}-seed0" / "metrics.jsonl" for name in ("fedavg", "fedprox")]
    while not all(file.exists() and file.stat().st_size for file in files):
        assert time.monotonic() < deadline
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.05)
    os.killpg(process.pid, number) if number == signal.SIGINT else process.send_signal(number)  # as a terminal does
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (code, "fedsat: stopped\n")
    assert "0 of 3 runs are done; the same command goes on from here" in out
    for file in files:
        assert json.loads((file.parent / "summary.json").read_text())["status"] == "interrupted"
    assert not (tmp_path / "many" / "fedsat-seed0").exists()
    while any_left(process.pid):
        assert time.monotonic() < deadline + 60


def test_resume(capsys: pytest.CaptureFixture[str]) -> None:
    killed_after(5, Path("run"))
    code, out, err = fedsat(capsys, "resume", "run")
    assert (code, err) == (0, "")
    assert "note: run goes on after round 4 of 6\n" in out
    assert "round 6/6" in out
    assert "mean of the last ten" in out
    code, out, _ = fedsat(capsys, "resume", "run", "--rounds", "7")
    assert code == 0
    assert tomllib.loads(Path("run/config.toml").read_text())["rounds"] == 7
    assert len(Path("run/metrics.jsonl").read_text().splitlines()) == 7


def test_compare_takes_up_what_was_interrupted(capsys: pytest.CaptureFixture[str]) -> None:
    call = ["compare", *SMALL, "--algorithms", "fedavg,fedsat", "--checkpoint-every", "1", "--out"]
    fedsat(capsys, *call, "whole")
    assert not Path("whole/fedsat-seed0/checkpoints").exists()  # nobody goes on from a finished one
    settings = tomllib.loads(Path("whole/fedsat-seed0/config.toml").read_text())
    run = package.prepare(package.Config.of(settings), Path("cut/fedsat-seed0"))
    run.play()
    run.play()
    del run
    code, out, _ = fedsat(capsys, *call, "cut")
    assert code == 0
    assert "note: cut/fedsat-seed0 goes on after round 2 of 3" in out
    assert {path.name for path in Path("cut").iterdir() if path.is_dir()} == {"fedavg-seed0", "fedsat-seed0"}
    assert results(Path("cut/fedsat-seed0")) == results(Path("whole/fedsat-seed0"))
    # A checkpoint that cannot be used is told, and the run begins anew beside it.
    run = package.prepare(package.Config.of(settings), Path("bad/fedsat-seed0"))
    run.play()
    del run
    Path("bad/fedsat-seed0/checkpoints/round-000001.json").write_text("{}")
    code, out, _ = fedsat(capsys, *call, "bad")
    assert code == 0
    assert "it begins anew in bad/fedsat-seed0-2\n" in out
    assert results(Path("bad/fedsat-seed0-2")) == results(Path("whole/fedsat-seed0"))


def test_what_there_is_to_know_of_runs_in_processes_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    call = ["compare", *SMALL, "--algorithms", "fedavg,fedsat", "--checkpoint-every", "1", "--out"]
    fedsat(capsys, *call, "whole")
    for name in ("fedavg-seed0", "fedsat-seed0"):
        settings = tomllib.loads(Path(f"whole/{name}/config.toml").read_text())
        run = package.prepare(package.Config.of(settings), Path("cut", name))
        run.play()
        del run
    Path("cut/fedavg-seed0/checkpoints/round-000001.json").write_text("{}")
    notes = sorted(line for line in fedsat(capsys, *call, "cut", "--jobs", "2")[1].splitlines() if "note:" in line)
    assert notes[0].startswith("fedavg-seed0  note: cut/fedavg-seed0 cannot be taken up: the checkpoint of round 1")
    assert notes[0].endswith("; it begins anew in cut/fedavg-seed0-2")
    assert "fedsat-seed0  note: cut/fedsat-seed0 goes on after round 1 of 3" in notes
