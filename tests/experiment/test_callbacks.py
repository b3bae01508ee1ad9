"""Callbacks: when they are called, what they may add, and how they end a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import fedsat
from fedsat.errors import UsageError
from fedsat.experiment import find_callbacks
from fedsat.experiment.folder import read_records, read_summary
from fedsat.experiment.store import StoredRun
from tests.support.calling import fedsat as call

TINY: dict[str, Any] = {
    "clients": 10, "per_round": 3, "workers": 2, "rounds": 4, "epochs": 1, "device": "cpu", "algorithm": "fedavg",
}  # fmt: skip


class Diary(fedsat.Callback):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def start(self, run: fedsat.Run) -> None:
        self.lines.append(f"start after {run.training.rounds}")

    def round(self, run: fedsat.Run, record: fedsat.RoundRecord) -> None:
        self.lines.append(f"round {record.round} of {run.training.rounds}")
        record.metrics["twice"] = 2 * record.metrics["accuracy"]
        record.extra["note"] = {"round": record.round}

    def end(self, run: fedsat.Run) -> None:
        self.lines.append(run.status)


def stop_at_two(run: fedsat.Run, record: fedsat.RoundRecord) -> None:
    if record.round == 2:
        run.stop("accuracy is good enough")


def fail_at_two(run: fedsat.Run, record: fedsat.RoundRecord) -> None:
    del run
    if record.round == 2:
        raise RuntimeError("no room for round 2")


def test_they_are_called_before_the_record_is_written(tmp_path: Path) -> None:
    diary = Diary()
    run = fedsat.run(**TINY, callbacks=[diary], out=tmp_path)
    assert diary.lines == ["start after 0", *(f"round {n} of {n}" for n in (1, 2, 3, 4)), "completed"]
    written = read_records(tmp_path)
    assert written == run.records
    assert written[1].metrics["twice"] == 2 * written[1].metrics["accuracy"]
    assert written[1].extra == {"note": {"round": 2}}
    assert run.summary["twice"] == written[-1].metrics["twice"]
    assert [each.name for each in StoredRun.read(tmp_path).own_metrics] == ["twice"]


def test_a_function_can_end_the_run(tmp_path: Path) -> None:
    run = fedsat.run(**TINY, callbacks=[stop_at_two], out=tmp_path)
    assert len(run.records) == 2
    summary = read_summary(tmp_path)
    assert (summary["status"], summary["stopped"], summary["rounds"]) == ("completed", "accuracy is good enough", 2)
    assert not StoredRun.read(tmp_path).ended_early


def test_an_error_leaves_out_its_round(tmp_path: Path) -> None:
    diary = Diary()
    with pytest.raises(RuntimeError, match="no room"):
        fedsat.run(**TINY, callbacks=[diary, fail_at_two], out=tmp_path, checkpoint_every=1)
    assert diary.lines[-1] == "failed"
    assert [record.round for record in read_records(tmp_path)] == [1]
    diary.lines.clear()
    resumed = fedsat.resume(tmp_path, callbacks=[diary])
    assert diary.lines[:2] == ["start after 1", "round 2 of 2"]
    plain = fedsat.run(**TINY)
    assert [r.train_loss for r in resumed.records] == [r.train_loss for r in plain.records]


def test_from_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("def early(run, record):\n    run.stop('enough')\n")
    options = "--clients 10 --per-round 3 --rounds 4 --epochs 1 --device cpu --algorithm fedavg".split()
    assert call(capsys, "run", *options, "--callback", "mine:early", "--out", "run")[0] == 0
    assert read_summary(tmp_path / "run")["rounds"] == 1
    assert call(capsys, "run", *options, "--callback", "nowhere:early")[0] == 2


def test_what_is_no_callback() -> None:
    assert len(find_callbacks([f"{__name__}:Diary", f"{__name__}:stop_at_two"])) == 2
    with pytest.raises(UsageError, match="neither a Callback nor a function"):
        find_callbacks([f"{__name__}:TINY"])
