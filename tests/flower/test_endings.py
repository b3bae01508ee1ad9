"""However `fedsat federate` or the example's nodes end, none of their processes is left."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from fedsat.cli import federate, main
from tests.support.faulty_nodes import wait_until
from tests.support.processes import environments_with

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedsat[flower]'")

from fedsat.flower import guard

SLOW = 120.0
README = Path(__file__).parent.parent.parent / "examples" / "flower" / "README.md"
SMALL = ["--partition", "iid", "--workers", "1", "--epochs", "1", "--rounds", "1000", "--nodes", "2"]


@pytest.mark.skipif(sys.platform != "linux", reason="processes are found in /proc")
@pytest.mark.parametrize(
    ("number", "code", "word"),
    [
        (signal.SIGKILL, -9, ""),
        (signal.SIGINT, 130, "fedsat: interrupted\n"),
        (signal.SIGTERM, 143, "fedsat: terminated\n"),
    ],
)
def test_a_stopped_federation_leaves_no_process(
    clouds: Path, tmp_path: Path, number: signal.Signals, code: int, word: str
) -> None:
    name, value = "FEDSAT_TEST", uuid.uuid4().hex
    command = [sys.executable, "-m", "fedsat", "federate", "--dataset", str(clouds), *SMALL, "--out", "out"]
    work = tmp_path / ("long" * 30)  # an address of a socket has at most 108 bytes
    work.mkdir()
    environment = {**os.environ, name: value, "TMPDIR": str(work)}
    process = subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    log = tmp_path / "out" / "flower-logs" / "node-1.log"
    wait_until(lambda: log.exists() and "SuperNode ID" in log.read_text(), SLOW, "the second node is connected")
    assert len(environments_with(f"{name}={value}")) >= 5
    process.send_signal(number)
    _, error = process.communicate(timeout=guard.PATIENCE + 10)
    assert (process.returncode, error) == (code, word)
    wait_until(lambda: not environments_with(f"{name}={value}"), guard.PATIENCE + 10, "all processes have ended")
    assert not list(work.glob("fedsat-*"))


def test_the_nodes_of_the_example_end_with_ctrl_c(tmp_path: Path) -> None:
    """The README's block is typed into an interactive shell, with a stand-in for fedsat."""
    blocks = re.findall(r"```\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    (block,) = [block for block in blocks if "fedsat supernode" in block]
    stub = tmp_path / "fedsat"
    stub.write_text("#!/bin/sh\necho $$ > home/$$.pid\nexec sleep 1000\n")
    stub.chmod(0o700)
    (tmp_path / "home").mkdir()
    terminal, inside = pty.openpty()
    take = (
        "import fcntl, os, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execvp('bash', ['bash', '--norc', '-i'])"
    )
    shell = subprocess.Popen(
        [sys.executable, "-c", take],
        cwd=tmp_path,
        env={**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"},
        stdin=inside,
        stdout=inside,
        stderr=inside,
        start_new_session=True,
    )
    os.write(terminal, block.partition("activate\n")[2].encode())
    wait_until(lambda: len([file for file in tmp_path.glob("home/*.pid") if file.read_text().endswith("\n")]) == 4)
    nodes = [int(file.read_text()) for file in tmp_path.glob("home/*.pid")]
    os.write(terminal, b"\x03")
    wait_until(lambda: not any(guard.send(node, 0) for node in nodes), what="all nodes have ended")
    shell.kill()
    shell.wait()
    os.close(terminal)
    os.close(inside)


def test_more_nodes_than_memory_are_refused(
    clouds: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(federate, "free_memory", lambda device: 3_000_000_000)
    with pytest.raises(SystemExit) as ended:
        main(["federate", "--dataset", str(clouds), "--nodes", "16", "--out", str(tmp_path / "out")])
    assert ended.value.code == 2
    assert "16 nodes need 3.2 GB of memory, but only 3.0 GB is free" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_an_unwritable_folder_is_reported_before_nodes_start(
    clouds: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit) as ended:
        main(["federate", "--dataset", str(clouds), *SMALL, "--out", str(tmp_path / "file" / "out")])
    assert ended.value.code == 1
    printed = capsys.readouterr()
    assert "cannot write to" in printed.err
    assert "starting" not in printed.out
