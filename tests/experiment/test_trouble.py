"""Full disks, and folders that are read-only or missing: one clear error line, and valid files remain."""

from __future__ import annotations

import os
import random
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import fedsat
from fedsat.experiment import Run
from fedsat.experiment.folder import read_records
from fedsat.metrics import RoundRecord
from tests.support import kill
from tests.support.runs import TINY, killed_after, results


@contextmanager
def files_no_longer_than(size: int) -> Iterator[None]:
    """Limit the size of files, so that writing fails as on a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)


def test_a_full_disk_keeps_the_last_checkpoint(tmp_path: Path) -> None:
    fedsat.run(**TINY, out=tmp_path / "whole")
    killed_after(3, tmp_path / "run")
    run = fedsat.restore(tmp_path / "run")
    largest = (tmp_path / "run" / "checkpoints" / "round-000002.safetensors").stat().st_size
    with (
        files_no_longer_than(largest // 2),
        pytest.raises(fedsat.FedsatError, match=r"cannot write to .*File too large"),
    ):
        fedsat.train(run)
    assert not list((tmp_path / "run").rglob("*.part"))
    assert [line.round for line in read_records(tmp_path / "run")] == [1, 2, 3, 4]
    del run
    run = fedsat.resume(tmp_path / "run")
    assert "resumes after round 2 of 6" in run.notes[0]
    assert results(tmp_path / "run") == results(tmp_path / "whole")


def test_a_disk_full_amid_a_line_keeps_whole_lines(tmp_path: Path) -> None:
    fedsat.run(**TINY, out=tmp_path / "whole")
    killed_after(3, tmp_path / "run")
    run = fedsat.restore(tmp_path / "run")
    size = (tmp_path / "run" / "metrics.jsonl").stat().st_size
    with files_no_longer_than(size + 40), pytest.raises(fedsat.FedsatError, match=r"cannot write to"):
        fedsat.train(run)
    assert [line.round for line in read_records(tmp_path / "run")] == [1, 2]
    del run
    fedsat.resume(tmp_path / "run")
    assert results(tmp_path / "run") == results(tmp_path / "whole")


def test_a_folder_that_vanishes_is_reported_at_the_next_round(tmp_path: Path) -> None:
    rounds: list[int] = []

    def remove(run: Run, line: RoundRecord) -> None:
        rounds.append(line.round)
        if line.round == 2:
            shutil.rmtree(tmp_path / "run")

    with pytest.raises(fedsat.FedsatError, match=r"cannot write to .*/run: No such file or directory"):
        fedsat.run(**TINY, out=tmp_path / "run", callbacks=[remove])
    assert rounds == [1, 2]
    assert not (tmp_path / "run").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is forbidden to root")
def test_a_read_only_folder(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(fedsat.FedsatError, match=r"cannot write to .*Permission denied"):
        fedsat.run(**TINY, out=tmp_path / "run")


def test_a_folder_on_a_read_only_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    killed_after(3, tmp_path)

    def refuse(path: Path, mode: str = "r", *_: Any, **__: Any) -> Any:
        if set(mode) & set("wa+"):
            raise OSError(30, "Read-only file system", str(path))
        return opened(path, mode)

    opened = Path.open
    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(fedsat.FedsatError, match=r"cannot write to .*: Read-only file system"):
        fedsat.resume(tmp_path)


def test_the_command_reports_it_in_one_line(tmp_path: Path) -> None:
    call = "run --clients 12 --per-round 3 --epochs 1 --rounds 300 --checkpoint-every 2 --algorithm scaffold --out run"
    limited = f"ulimit -f 800; trap '' XFSZ; exec {sys.executable} -m fedsat {call}"  # in units of 1,024 bytes
    done = subprocess.run(["bash", "-c", limited], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "fedsat: cannot write to run/checkpoints: File too large\n"
    assert "rounds are kept in run; continue with fedsat resume run" in done.stdout


def test_killed_for_real(tmp_path: Path) -> None:
    """A small `python -m benchmarks.kill`."""
    assert kill.kill_and_resume(tmp_path, rounds=30, kills=3, draw=random.Random(1)).total() >= 1
