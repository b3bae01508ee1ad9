"""What users name by mistake, or what somebody else left there: an error in one line, never a hang."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedsat
from fedsat.cli import main
from fedsat.data import Dataset, Split
from fedsat.errors import DataError
from fedsat.experiment import folder as folders
from fedsat.experiment.folder import RunFolder
from fedsat.experiment.jobs import MOST_SEEDS
from fedsat.experiment.store import StoredRun
from tests.support.federations import tiny_dataset

HUGE = "9" * 400


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no pipes with names")
@pytest.mark.parametrize("names", [["images.npy", "labels.npy"], ["a/1.png", "b/1.png"], ["x.npz"], ["x.csv"]])
def test_a_pipe_is_not_waited_for(names: list[str], tmp_path: Path) -> None:
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        os.mkfifo(tmp_path / name)
    source, label = tmp_path, {}
    if len(names) == 1:
        source = tmp_path / names[0]
        label = {"label": "y"} if source.suffix == ".csv" else {}
    if label:
        pytest.importorskip("pyarrow")
    with pytest.raises(DataError, match="not a regular file"):
        fedsat.run(dataset=str(source), **label)  # type: ignore[arg-type]


def test_samples_without_values() -> None:
    with pytest.raises(DataError, match=r"shape \[1, 0, 4\], which holds no value"):
        Split(np.zeros((3, 1, 0, 4), np.uint8), np.array([0, 1, 0]))


def test_names_that_would_command_a_terminal() -> None:
    made = tiny_dataset(12)
    with pytest.raises(DataError, match=r"the name 'a\\x1b\[31m' contains a control character"):
        Dataset("tiny", made.train, made.test, ("a\x1b[31m", "b", "c"))


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["compare", "--seeds", HUGE], f"seeds must be a number from 1 to {MOST_SEEDS:,}"),
        (["run", "--rounds", HUGE], "rounds has 400 digits, which is too large"),
        (["run", "--seed", f"-{HUGE}"], "seed has 400 digits, which is too large"),
        (["run", "--set", f"alpha={HUGE}"], "alpha has 400 digits, which is too large"),
    ],
)
def test_huge_numbers(arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*arguments, "--dataset", "mnist-mini"])
    assert ended.value.code == 2
    assert told in capsys.readouterr().err


def test_a_module_that_ends_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "quits.py").write_text("import sys\nsys.exit(0)\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(["run", "--dataset", "mnist-mini", "--model", "quits:Net"])
    assert ended.value.code == 2
    assert "cannot import 'quits' for the model 'quits:Net': it calls sys.exit" in capsys.readouterr().err


LEAVES = """import signal, sys
from torch import nn
from fedsat.experiment.interrupt import Terminated

class Net(nn.Module):
    def __init__(self, by_signal: bool = False) -> None:
        if by_signal:
            raise Terminated(signal.SIGTERM)
        sys.exit(0)
"""


def test_a_model_that_ends_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "leaves.py").write_text(LEAVES)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(["run", "--dataset", "mnist-mini", "--model", "leaves:Net"])
    assert ended.value.code == 2
    assert "leaves:Net calls sys.exit(0) when it is created; raise an error instead" in capsys.readouterr().err
    with pytest.raises(SystemExit) as ended:
        main(["run", "--dataset", "mnist-mini", "--model", "leaves:Net", "--set", "model.by_signal=true"])
    assert ended.value.code == 128 + signal.SIGTERM


def test_two_runs_that_start_at_once_in_one_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both have seen that the folder is free. One makes the run, the other is refused, and nothing is mixed."""
    both, seen, errors = threading.Barrier(2), threading.local(), list[Exception]()
    refuse = folders.refuse_used

    def see(path: Path) -> None:
        refuse(path)
        if not getattr(seen, "once", False):
            seen.once = True
            both.wait(30)

    def start(name: str) -> None:
        try:
            RunFolder.create(tmp_path / "run", f"name = '{name}'").record([])
        except fedsat.UsageError as error:
            errors.append(error)

    monkeypatch.setattr(folders, "refuse_used", see)
    threads = [threading.Thread(target=start, args=(name,)) for name in ("one", "two")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [str(error) for error in errors] == [
        f"{tmp_path / 'run'} already contains a run; use another --out, or move it away"
    ]
    assert {path.name for path in (tmp_path / "run").iterdir()} == {"config.toml", "metrics.jsonl"}


@pytest.mark.parametrize(
    "change",
    [
        lambda lines: lines[:-1],
        lambda lines: [lines[0].replace(b'"round": 1', b'"round": 1, "x": 1'), *lines[1:]],
        lambda lines: [*lines, lines[-1]],
    ],
)
def test_changed_records_of_a_finished_run(change: Any, tmp_path: Path) -> None:
    tiny = {"rounds": 2, "clients": 3, "per_round": 2, "workers": 1, "epochs": 1, "partition": "iid"}
    fedsat.run(dataset=tiny_dataset(30), out=tmp_path, algorithm="fedavg", **tiny)  # type: ignore[arg-type]
    assert len(StoredRun.read(tmp_path).records) == 2
    file = tmp_path / "metrics.jsonl"
    file.write_bytes(b"".join(change(file.read_bytes().splitlines(keepends=True))))
    with pytest.raises(fedsat.UsageError, match=r"metrics.jsonl has changed since the run ended"):
        print(StoredRun.read(tmp_path).records)
    file.unlink()
    with pytest.raises(fedsat.UsageError, match=r"metrics.jsonl has changed since the run ended"):
        print(StoredRun.read(tmp_path).records)
