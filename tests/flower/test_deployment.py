"""The commands of a federation on several machines: `fedsat superlink`, `fedsat supernode` and `flwr run`."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fedsat.cli import main
from tests.support.faulty_nodes import wait_until
from tests.support.processes import environments_with

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedsat[flower]'")

from fedsat.experiment.folder import read_summary
from fedsat.flower.credentials import make_credentials
from fedsat.flower.processes import QUIET, beside_python, free_port

SLOW = 120.0
"""Seconds that a step may take on a busy machine."""
EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "flower"
QUIETLY = {b"FLWR_TELEMETRY_ENABLED=0", b"FLWR_DISABLE_UPDATE_CHECK=1"}


@contextmanager
def started(folder: Path, name: str, *arguments: str) -> Iterator[Path]:
    """Run a command of fedsat in a folder, yield its output, and end it with SIGTERM."""
    log = folder / f"{name}.log"
    with log.open("wb") as output:
        command = [sys.executable, "-m", "fedsat", *arguments]
        process = subprocess.Popen(command, cwd=folder, stdout=output, stderr=subprocess.STDOUT)
    try:
        yield log
    finally:
        process.terminate()
        assert process.wait(SLOW) == 128 + signal.SIGTERM, log.read_text()


def command_of(pid: int) -> str:
    """Return the name of the file or module that this Python process runs."""
    _, *words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    return next(Path(word).stem for word in words if not word.startswith("-"))


def test_a_federation_from_its_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mark = f"FEDSAT_TEST={uuid.uuid4().hex}"
    for setting in (mark, "FLWR_TELEMETRY_ENABLED=1", "FLWR_DISABLE_UPDATE_CHECK=0"):
        monkeypatch.setenv(*setting.split("="))
    make_credentials(tmp_path, 2)
    (tmp_path / "server" / "node-1.pub").unlink()  # the server learns of it later
    run = ["dataset='mnist-mini'", "partition='iid'", "clients=2", "per-round=2", "rounds=1", f"wait={SLOW}"]
    door, control = free_port(), free_port()
    share = [f"127.0.0.1:{door}", "--dataset", "mnist-mini", "--clients", "2"]
    server = ["server", "--port", f"{door}", "--control-port", f"{control}", "--state", "state"]
    with started(tmp_path, "link", "superlink", *server) as log:
        wait_until(lambda: "nodes connect to" in log.read_text(), SLOW, "the gate opens")
        shutil.copy(tmp_path / "node-1" / "node.pub", tmp_path / "server" / "node-1.pub")
        wait_until(lambda: "node-1.pub is registered" in log.read_text(), SLOW, "the new key is registered")
        first, second = (
            ["--client", f"{client}", "--key", f"node-{client}/node", "--authority", f"node-{client}/ca.crt"]
            for client in (0, 1)
        )
        with (
            started(tmp_path, "first", "supernode", *share, *first) as one,
            started(tmp_path, "second", "supernode", *share, *second) as other,
        ):
            for node in (one, other):
                wait_until(lambda node=node: "SuperNode ID" in node.read_text(), SLOW, "the node is connected")
            processes = environments_with(mark)
            loud = {command_of(pid) for pid, settings in processes.items() if not settings >= QUIETLY}
            assert loud == {"fedsat", "guard"}  # neither of which is Flower's
            assert len(processes) >= 12  # Flower's SuperLink and SuperNodes and their helpers, the gate, ours
            done = subprocess.run(
                [beside_python("flwr"), "run", str(EXAMPLE), "fedsat", "--stream", "--run-config", " ".join(run)],
                cwd=tmp_path,
                env=os.environ | QUIET | {"FLWR_HOME": str(tmp_path / "state")},
                capture_output=True,
                text=True,
                check=True,
            )
    (folder,) = (tmp_path / "runs").iterdir()
    assert read_summary(folder)["status"] == "completed", done.stdout
    for port in (door, control):
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port))
    assert (tmp_path / "state" / "superlink.db").exists()


def test_commands_without_what_they_need(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "agreement.toml").write_text("min_batch_size = 0")
    file = str(tmp_path / "file")
    usual = ["supernode", "server:9092", "--key", file, "--authority", file]
    for command, told in (
        (["superlink", str(tmp_path / "none")], "none is not a folder"),
        (["superlink", str(tmp_path)], "ca.crt is missing"),
        (usual, "with either --folder or --dataset"),
        ([*usual, "--folder", "a", "--dataset", "b"], "with either --folder or --dataset"),
        ([*usual, "--dataset", "mnist-mini", "--client", "1"], "give --client and --clients as well"),
        (["supernode", "s", "--key", file, "--authority", "gone", "--folder", "a"], "gone does not exist"),
        ([*usual, "--folder", "a", "--agreement", str(tmp_path / "agreement.toml")], "min_batch_size is 0"),
    ):
        with pytest.raises(SystemExit) as ended:
            main(command)
        assert ended.value.code == 2
        assert told in re.sub(r"\s+", " ", capsys.readouterr().err)
