"""The commands of a federation on several machines: `fedsat superlink`, `fedsat supernode` and `flwr run`."""

from __future__ import annotations

import os
import re
import runpy
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fedsat.cli import main
from tests.support.faulty_nodes import wait_until

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedsat[flower]'")

from fedsat.experiment.folder import read_summary
from fedsat.flower.processes import beside_python, free_port
from fedsat.flower.project import write_project

SLOW = 120.0
"""Seconds that a step may take on a busy machine."""
CREDENTIALS = Path(__file__).parent.parent.parent / "examples" / "flower" / "credentials.py"


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


def test_a_federation_from_its_commands(tmp_path: Path) -> None:
    keys, nodes = tmp_path / "keys", tmp_path / "nodes"
    runpy.run_path(str(CREDENTIALS))["make_credentials"](keys, 2, [])
    nodes.mkdir()
    for name in ("node-0", "node-1"):
        (keys / name).rename(nodes / name)
    (keys / "node-1.pub").rename(nodes / "node-1.pub")  # the server learns of it later
    run = {"dataset": "mnist-mini", "partition": "iid", "clients": 2, "per-round": 2, "rounds": 1, "wait": SLOW}
    write_project(tmp_path / "project", {**run, "epochs": 1, "model": "mlp", "algorithm": "fedavg"})
    door, control = free_port(), free_port()
    share = [f"127.0.0.1:{door}", "--authority", str(keys / "ca.crt"), "--dataset", "mnist-mini", "--clients", "2"]
    server = ["keys", "--port", f"{door}", "--control-port", f"{control}", "--state", "state"]
    with started(tmp_path, "server", "superlink", *server) as log:
        wait_until(lambda: "nodes connect to" in log.read_text(), SLOW, "the gate opens")
        (nodes / "node-1.pub").rename(keys / "node-1.pub")
        wait_until(lambda: "node-1.pub is registered" in log.read_text(), SLOW, "the new key is registered")
        first, second = (["--client", f"{client}", "--key", str(nodes / f"node-{client}")] for client in (0, 1))
        with (
            started(tmp_path, "node-0", "supernode", *share, *first),
            started(tmp_path, "node-1", "supernode", *share, *second),
        ):
            quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
            done = subprocess.run(
                [beside_python("flwr"), "run", "project", "fedsat", "--stream"],
                cwd=tmp_path,
                env=os.environ | quiet | {"FLWR_HOME": str(tmp_path / "state")},
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
        (usual, "use either --folder or --dataset"),
        ([*usual, "--folder", "a", "--dataset", "b"], "use either --folder or --dataset"),
        ([*usual, "--dataset", "mnist-mini", "--client", "1"], "use --client and --clients as well"),
        (["supernode", "s", "--key", file, "--authority", "gone", "--folder", "a"], "gone does not exist"),
        ([*usual, "--folder", "a", "--agreement", str(tmp_path / "agreement.toml")], "min_batch_size is 0"),
    ):
        with pytest.raises(SystemExit) as ended:
            main(command)
        assert ended.value.code == 2
        assert told in re.sub(r"\s+", " ", capsys.readouterr().err)
