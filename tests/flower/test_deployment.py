"""A federation on several machines: its commands, and the files in `deploy`."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from fedsat.cli import main
from tests.support.faulty_nodes import wait_until
from tests.support.processes import environments_with

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedsat[flower]'")

from fedsat.experiment.folder import read_summary
from fedsat.flower.processes import QUIET, beside_python, free_port

SLOW = 120.0
"""Seconds that a step may take on a busy machine."""
ROOT = Path(__file__).parent.parent.parent
QUIETLY = {b"FLWR_TELEMETRY_ENABLED=0", b"FLWR_DISABLE_UPDATE_CHECK=1"}


class Compose:
    """The services of `deploy/compose.yaml` as processes: paths and addresses in containers become those of a copy."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "deploy"
        shutil.copytree(ROOT / "deploy", self.folder)
        shutil.copytree(ROOT / "examples" / "flower", folder / "examples" / "flower")
        self.services: dict[str, Any] = yaml.safe_load((self.folder / "compose.yaml").read_text())["services"]
        self.door = free_port()

    def here(self, service: str, words: list[str]) -> list[str]:
        """Return words of a command in a container as they are on this machine."""
        volumes = [volume.split(":") for volume in self.services[service]["volumes"]]
        paths = {inside: self.folder / outside for outside, inside, *_ in volumes}
        paths["/opt"] = self.folder
        found = []
        for word in words:
            inside = next((path for path in paths if Path(word).is_relative_to(path)), None)
            address = f"127.0.0.1:{self.door}" if word.endswith(":9092") else word
            found.append(address if inside is None else str(paths[inside] / Path(word).relative_to(inside)))
        return found

    @contextmanager
    def started(self, service: str, *options: str) -> Iterator[Path]:
        """Run a service, yield its output, and end it as Docker does, with SIGTERM."""
        log = self.folder / f"{service}.log"
        with log.open("wb") as output:
            command = self.here(service, shlex.split(self.services[service]["command"]))
            process = subprocess.Popen(
                [sys.executable, "-m", "fedsat", *command, *options],
                cwd=self.folder,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        try:
            yield log
        finally:
            process.terminate()
            assert process.wait(SLOW) == 128 + signal.SIGTERM, log.read_text()

    def is_healthy(self, service: str) -> bool:
        """Run the health check of a service."""
        _, _, *words = self.services[service]["healthcheck"]["test"]
        done = subprocess.run([sys.executable, *self.here(service, words)], stderr=subprocess.PIPE, check=False)
        assert done.returncode == 0 or b"cannot be reached" in done.stderr or b"status 502" in done.stderr, done.stderr
        return done.returncode == 0


def command_of(pid: int) -> str:
    """Return the name of the file or module that this Python process runs."""
    _, *words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    return next(Path(word).stem for word in words if not word.startswith("-"))


@pytest.mark.skipif(sys.platform != "linux", reason="processes are found in /proc")
def test_the_services_of_compose(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mark = f"FEDSAT_TEST={uuid.uuid4().hex}"
    for setting in (mark, "FLWR_TELEMETRY_ENABLED=1", "FLWR_DISABLE_UPDATE_CHECK=0"):
        monkeypatch.setenv(*setting.split("="))
    compose = Compose(tmp_path)
    monkeypatch.setenv("FEDSAT", f"{sys.executable} -m fedsat")
    subprocess.run(["./setup.sh", "fl.example.org"], cwd=compose.folder, check=True)
    assert subprocess.run(["./setup.sh"], cwd=compose.folder, check=False).returncode == 1  # keys are not replaced
    late = compose.folder / "keys" / "server" / "node-3.pub"
    late.rename(late.with_suffix(".later"))
    assert not compose.is_healthy("server")
    with ExitStack() as stack:
        log = stack.enter_context(
            compose.started("server", "--port", f"{compose.door}", "--control-port", f"{free_port()}")
        )
        wait_until(lambda: "nodes connect to" in log.read_text(), SLOW, "the gate opens")
        assert compose.is_healthy("server")
        late.with_suffix(".later").rename(late)
        wait_until(lambda: "node-3.pub is registered" in log.read_text(), SLOW, "the new key is registered")
        nodes = [stack.enter_context(compose.started(f"node-{client}")) for client in range(4)]
        wait_until(lambda: all("SuperNode ID" in node.read_text() for node in nodes), SLOW, "the nodes are connected")
        assert compose.is_healthy("node-3")
        processes = environments_with(mark)
        loud = {command_of(pid) for pid, settings in processes.items() if not settings >= QUIETLY}
        assert loud == {"fedsat", "guard"}  # neither of which is Flower's
        assert len(processes) > 20  # Flower's SuperLink and SuperNodes with their helpers, the gate, ours
        project, home = compose.here("server", ["/project", "/state"])
        done = subprocess.run(
            [beside_python("flwr"), "run", project, "fedsat", "--stream", "--run-config", "rounds=1"],
            env=os.environ | QUIET | {"FLWR_HOME": home},
            capture_output=True,
            text=True,
            check=True,
        )
    (run,) = (compose.folder / "runs").iterdir()
    assert read_summary(run)["status"] == "completed", done.stdout
    assert not compose.is_healthy("server")
    assert not environments_with(mark)
    assert (compose.folder / "state" / "server" / "superlink.db").exists()
    assert list((compose.folder / "state" / "node-0").iterdir())


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
