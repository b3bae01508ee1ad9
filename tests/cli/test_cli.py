"""The command line as a user types it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file

from fedsat.data import Schema
from fedsat.version import __version__
from tests.support.calling import SMALL, fedsat
from tests.support.patients import write_patients
from tests.support.runs import killed_after


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
    assert "\\" not in fedsat(capsys, "compare", "--help")[1]  # no escaped brackets


def test_run_shows_rounds_and_a_table_and_leaves_files(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = fedsat(capsys, "run", *SMALL)
    assert (code, err) == (0, "")
    assert "round 3/3" in out
    assert "mean of all rounds" in out
    assert "\x1b" not in out  # not a terminal: no colours, no cursor updates
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


def test_local_training_and_stopping(capsys: pytest.CaptureFixture[str]) -> None:
    local = "--batch-size all --steps 2 --momentum 0.9 --nesterov --lr-schedule cosine --warmup 1"
    stopping = "--validation 0.2 --early-stop loss --restore-best"
    code, out, err = fedsat(capsys, "run", *SMALL, *local.split(), *stopping.split(), "--out", "run")
    assert (code, err) == (0, "")
    assert "model to use: the best one, of round" in out
    config = tomllib.loads(Path("run/config.toml").read_text())
    assert (config["batch_size"], config["steps"], config["restore_best"]) == ("all", 2, True)
    assert config["optimizer"] == {
        "name": "sgd", "momentum": 0.9, "nesterov": True, "weight_decay": 0.0, "clip": 0.0,
    }  # fmt: skip
    assert config["lr_schedule"] == {"name": "cosine", "warmup": 1, "lowest": 0.0}
    fedsat(capsys, "run", "run/config.toml", "--batch-size", "8", "--rounds", "2", "--out", "again")
    assert tomllib.loads(Path("again/config.toml").read_text())["batch_size"] == 8
    code, _, err = fedsat(capsys, "run", "--algorithm", "fedavgm", "--set", "momentum=0.5")
    assert code == 2
    assert "'momentum' could mean optimizer.momentum or algorithm.momentum; write it in full" in err


def test_parts_on_and_off(capsys: pytest.CaptureFixture[str]) -> None:
    fedsat(capsys, "run", *SMALL, "--without", "psl,correction,pwa", "--out", "bare")
    fedsat(capsys, "run", *SMALL, "--algorithm", "fedavg", "--out", "fedavg")
    fedsat(capsys, "run", *SMALL, "--algorithm", "fedavg", "--with", "psl,pwa", "--out", "both")
    models = {name: load_file(Path(name, "model.safetensors")) for name in ("bare", "fedavg", "both")}
    same = [all(bool((models["bare"][key] == models[name][key]).all()) for key in models["bare"]) for name in models]
    assert same == [True, True, False]


def test_report(capsys: pytest.CaptureFixture[str]) -> None:
    fedsat(capsys, "run", *SMALL, "--out", "one")
    code, out, _ = fedsat(capsys, "report", "one", "--figures", "figures", "--out", "pages/one.html")
    assert code == 0
    assert "page: pages/one.html" in out
    page = Path("pages/one.html").read_text()
    assert '"federation":0' in page
    assert len(json.loads(Path("one/summary.json").read_text())["client_accuracies"]) == 30
    names = {path.name for path in Path("figures").iterdir()}
    shared = "accuracy worst_class_recall worst_client_accuracy effective_clients clients partition"
    for name in f"{shared} recall-fedsat weights-fedsat confusion-fedsat".split():
        assert {f"{name}.png", f"{name}.svg"} <= names
    assert Path("figures/accuracy.png").read_bytes().startswith(b"\x89PNG")


def test_a_report_says_what_it_leaves_out(capsys: pytest.CaptureFixture[str]) -> None:
    fedsat(capsys, "run", *SMALL, "--out", "one")
    assert fedsat(capsys, "run", *SMALL, "--lr", "1e30", "--out", "failed")[0] == 1
    code, out, _ = fedsat(capsys, "report", "one", "failed")
    assert code == 0
    assert "left out, because no round was evaluated: failed\n" in out


def test_lists(capsys: pytest.CaptureFixture[str]) -> None:
    expected = {
        "algorithms": ("fedavg", "fedsat:paper", "gamma = 0.9", "γ, strength of the correction"),
        "models": ("mlp", "lenet5", "resnet8", "resnet18", "width = 64"),
        "datasets": ("mnist-mini", "cifar100", "built in"),
        "partitions": ("ls", "lsmc", "lqsmc", "iid", "quantity", "file", "classes_per_client = 2"),
        "objectives": ("psl", "epsilon2 = 4.0"),
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
    assert "classes per client" in out
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
    assert "note: " in out  # the note says that a sixth is held out for testing


def test_list_alone_lists_everything(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = fedsat(capsys, "list")
    assert code == 0
    for word in ("mnist-mini", "fedsat:robust", "cross-entropy", "pwa", "trimmed-mean", "sign-flip", "resnet8", "lsmc"):
        assert word in out


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
    (["run", "--beta", "0.1"], "unknown option of the partition lsmc: 'beta' (known: classes_per_client, sizes, skew)"),
    (["run", "--without", "everything"], "unknown part to leave out"),
    (["run", "nowhere.toml"], "no configuration file"),
    (["run", "--nothing"], "No such option: --nothing"),
    (["resume", "nowhere"], "nowhere contains no run"),
    (["list", "method"], "did you mean 'methods'?"),
    (["run", "--partition", "ls", "--classes-per-client", "2"], "option of the partition ls: 'classes_per_client'"),
    (["run", "--dataset", ""], "dataset is empty"),
    (["compare", "--methods", ","], "no method is given"),
    (["compare", "--grid", "gama=1,2"], "did you mean 'gamma'?"),
    (["compare", "--grid", "gamma"], "--grid takes key=value"),
    (["compare", "--grid", "gamma="], "gives gamma no value"),
    (["compare", "--grid", "gamma=1,2", "--set", "algorithm.gamma=1"], "algorithm.gamma is given twice"),
    (["compare", "--grid", "seed=1,2"], "takes its seed from --seed and --seeds"),
    (["compare", "--set", "algorithm=fedprox"], "takes its algorithm from --methods"),
    (["compare", "--set", "mu=1"], "unknown setting 'mu'"),
    (["compare", "--seeds", "0"], "--seeds"),
    (["report", "nowhere"], "no folder nowhere"),
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
    assert "rounds are kept" not in out
    assert json.loads(Path("run/summary.json").read_text())["status"] == "failed"


def test_debug_shows_the_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = fedsat(capsys, "run", "--algorithm", "fedsatt", "--debug")
    assert code == 2
    assert err.startswith("Traceback")
    assert "typer" not in err
    assert "did you mean 'fedsat'" in err.splitlines()[-1]


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


@pytest.mark.parametrize(
    ("number", "code", "word"),
    [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated"), (signal.SIGHUP, 129, "hung up")],
)
def test_a_stopped_run_finishes_its_files(tmp_path: Path, number: signal.Signals, code: int, word: str) -> None:
    ended, out, err = stopped_by(number)
    assert (ended, err) == (code, f"fedsat: {word}\n")
    assert "rounds are kept in run; continue with fedsat resume run" in out
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["status"] == "interrupted"
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) >= 2
    assert list((tmp_path / "run" / "checkpoints").glob("*.safetensors"))


def test_resume(capsys: pytest.CaptureFixture[str]) -> None:
    killed_after(5, Path("run"))
    code, out, err = fedsat(capsys, "resume", "run")
    assert (code, err) == (0, "")
    assert "note: run resumes after round 4 of 6\n" in out
    assert "round 6/6" in out
    assert "mean of all rounds" in out
    code, out, _ = fedsat(capsys, "resume", "run", "--rounds", "7")
    assert code == 0
    assert tomllib.loads(Path("run/config.toml").read_text())["rounds"] == 7
    assert len(Path("run/metrics.jsonl").read_text().splitlines()) == 7


def test_data_show_describes_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("pyarrow")
    write_patients(Path("patients.csv"))
    code, out, _ = fedsat(
        capsys, "data", "show", "patients.csv", "--label", "outcome", "--client", "hospital", "--drop", "ill",
        "--schema", "schema.json",
    )  # fmt: skip
    assert code == 0
    assert re.search(r"age +number +1 +\d\d\.\d+ ± 1\d\.\d+ +0", out)
    assert re.search(r"ward +category +3 +a, b +0", out)
    assert re.search(r"east +\d+ +\d+ +2\d", out)
    assert "patients.csv, natural, 3 clients, seed 0" in out
    assert not re.search(r"^ *ill ", out, re.MULTILINE)
    assert Schema.from_json(Path("schema.json").read_text()).label == "outcome"
    assert Path("patients-natural.png").is_file()
