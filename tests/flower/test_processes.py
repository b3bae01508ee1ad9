"""Real processes on this machine: a SuperLink, four SuperNodes, and runs submitted to them."""

from __future__ import annotations

import os
import shutil
import signal
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from safetensors.torch import load_file
from torch.testing import assert_close

import fedsat
from tests.support.faulty_nodes import wait_until
from tests.support.killed_federation import holds
from tests.support.processes import environments_with

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedsat[flower]'")

from fedsat.cli import main
from fedsat.experiment.checkpoint import FOLDER as CHECKPOINTS
from fedsat.experiment.folder import read_records, read_summary
from fedsat.flower.credentials import make_credentials
from fedsat.flower.federation import LocalFederation, Tls
from fedsat.flower.gate import header_of
from fedsat.flower.local_run import recorded, start_nodes, submit
from fedsat.flower.processes import MARK
from fedsat.flower.project import PROJECT
from fedsat.flower.terms import Terms

NODES = 4
SLOW = 120.0
"""Seconds that a run may take on a busy machine."""


def settings(clouds: Path, **others: Any) -> dict[str, Any]:
    usual = {"clients": NODES, "per_round": 3, "workers": 2, "rounds": 3, "epochs": 2, "batch_size": 4, "lr": 0.05}
    shared = {"dataset": str(clouds), "partition": {"name": "ls", "beta": 0.5}, "engine": "sequential"}
    return {**shared, **usual, "evaluate_every": 3, "checkpoint_every": 0, **others}


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory, clouds: Path) -> Iterator[LocalFederation]:
    """One federation of four nodes for all runs of this file."""
    with LocalFederation(tmp_path_factory.mktemp("federation")) as running:
        start_nodes(running, fedsat.configure(**settings(clouds)), running.folder / "states")
        yield running
    assert not [pid for pid in Path("/proc").glob("[0-9]*") if _belongs(pid, running)], "a process was left behind"


def _belongs(pid: Path, federation: LocalFederation) -> bool:
    try:
        return f"{MARK}={federation._mark}".encode() in (pid / "environ").read_bytes()
    except OSError:
        return False


def wait(process: subprocess.Popen[bytes], federation: LocalFederation, out: Path) -> None:
    """Wait until the run has written its summary; fail if Flower ends it before."""
    wait_until(lambda: bool(read_summary(out)) or process.poll() is not None, SLOW, "the run ends")
    assert read_summary(out), federation.log("run")[-3000:]


def assert_equal_to_the_simulator(folder: Path, table: dict[str, Any]) -> None:
    """The files of real nodes in `folder` equal those of the sequential engine."""
    reference = folder.with_name(f"{folder.name}-alone")
    alone = fedsat.run(**table, out=reference)
    summary, wanted = read_summary(folder), read_summary(reference)
    assert summary["status"] == "completed"
    left, right = (load_file(path / "model.safetensors") for path in (folder, reference))
    assert left.keys() == right.keys()
    for name in left:
        assert_close(left[name], right[name], rtol=1e-5, atol=1e-7)
    assert summary["accuracy"] == pytest.approx(wanted["accuracy"])
    for mine, other in zip(read_records(folder), alone.records, strict=True):
        assert mine.clients == other.clients
        assert mine.weights == pytest.approx(other.weights, rel=1e-5)
        assert mine.bytes_down > other.bytes_down  # measured bytes include names and headers
        assert not [note for note in mine.left_out if "it is back" not in note["why"]]
    wanted_files = {path.name for path in reference.iterdir()} - {CHECKPOINTS}
    assert wanted_files <= {path.name for path in folder.iterdir()}


def test_the_command(clouds: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = settings(clouds, algorithm="fedavg")
    (tmp_path / "run.toml").write_text(fedsat.configure(**table).to_toml())
    with pytest.raises(SystemExit) as ended:
        main(["federate", str(tmp_path / "run.toml"), "--nodes", f"{NODES}", "--out", str(tmp_path / "out")])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert "fedavg  round 3/3  accuracy" in shown
    assert "last round" in shown
    assert_equal_to_the_simulator(tmp_path / "out", table)
    assert "client 3 is node" in (tmp_path / "out" / "flower-logs" / "run.log").read_text()


def test_scaffold_and_fedsat(federation: LocalFederation, clouds: Path, tmp_path: Path) -> None:
    for method in ("scaffold", "fedsat"):
        table = settings(clouds, algorithm=method)
        run = submit(federation, fedsat.configure(**table), Terms(wait=60.0, timeout=60.0), tmp_path / method)
        wait(run, federation, tmp_path / method)
        assert_equal_to_the_simulator(tmp_path / method, table)


def test_a_killed_node_comes_back(federation: LocalFederation, clouds: Path, tmp_path: Path) -> None:
    config = fedsat.configure(**settings(clouds, algorithm="fedavg", per_round=4, rounds=7, evaluate_every=7))
    out, share = tmp_path / "out", {"dataset": str(clouds), "partition-id": 2, "num-partitions": NODES}
    share["agreement"] = str(federation.folder / "agreement.toml")
    share["state"] = str(federation.folder / "states" / "node-2")
    seen = len(federation.log("node-2"))
    run = submit(federation, config, Terms(wait=60.0, timeout=20.0), out)
    wait_until(lambda: "ROUND 2]" in federation.log("node-2")[seen:], SLOW, "node 2 is sampled in round 2")
    federation.kill("node-2")
    wait_until(lambda: out.exists() and len(read_records(out)) >= 3, SLOW, "round 4 begins")
    federation.start_node("node-2", share)
    wait(run, federation, out)
    summary, metrics = read_summary(out), read_records(out)
    assert summary["status"] == "completed"
    assert summary["accuracy"] > 0.5
    assert 2 not in metrics[1].clients
    assert metrics[1].left_out[0]["client"] == 2
    assert "client 2: no reply in" in federation.log("run")
    assert "client 2: it is back" in federation.log("run")
    assert 2 in metrics[-1].clients


@pytest.mark.skipif(sys.platform != "linux", reason="processes are found in /proc")
def test_a_killed_server_app_is_submitted_again(federation: LocalFederation, clouds: Path, tmp_path: Path) -> None:
    """`flwr run`, SIGKILL, and `flwr run` again. `python -m benchmarks.kills --tls` kills the other parts as well."""
    table = settings(clouds, algorithm="scaffold", rounds=4, evaluate_every=4)
    config, terms, out = (
        fedsat.configure(**{**table, "checkpoint_every": 1}),
        Terms(wait=60.0, timeout=60.0),
        tmp_path / "out",
    )
    submit(federation, config, terms, out)
    wait_until(lambda: out.exists() and bool(recorded(out)), SLOW, "a round ends")
    (server,) = [
        pid for pid in environments_with(f"{MARK}={federation._mark}") if holds(pid, out / "checkpoints" / "lock")
    ]
    os.kill(server, signal.SIGKILL)
    assert len(recorded(out)) < 4
    federation.kill("run")  # it follows the log until Flower notices, after a minute
    wait(submit(federation, config, terms, out), federation, out)
    assert "resumes after round" in federation.log("run")
    assert_equal_to_the_simulator(out, table)


def credentials(folder: Path) -> tuple[Tls, Path]:
    """Make the certificates and keys of two nodes, and a folder of known keys that has only the first."""
    make_credentials(folder, 2)
    known = folder / "known"
    known.mkdir()
    shutil.copy(folder / "server" / "node-0.pub", known)
    return Tls.of(folder / "server"), known


def test_only_nodes_with_a_known_key_connect(tmp_path: Path) -> None:
    tls, known = credentials(tmp_path / "ours")
    theirs, _ = credentials(tmp_path / "theirs")
    key, once = tmp_path / "ours" / "node-0" / "node", ("--max-retries", "1")
    with LocalFederation(tmp_path, tls=tls, keys=known) as federation:
        first = federation.start_node("known", {"partition-id": 0}, key=key)
        refused = {
            "unknown": federation.start_node("unknown", {}, *once, key=tmp_path / "ours" / "node-1" / "node"),
            "without": federation.start_node("without", {}, *once),
            "misled": federation.start_node("misled", {}, *once, key=key, authority=theirs.authority),
        }
        wait_until(lambda: "SuperNode ID" in federation.log("known"), SLOW, "the registered node is connected")
        for name, process in refused.items():
            assert process.wait(SLOW) != 0
            assert "Failed to initialize the connection" in federation.log(name)
            assert "SuperNode ID" not in federation.log(name)
        assert "the key is unknown" in federation.log("unknown")
        assert "a node needs a key" in federation.log("without")
        assert "CERTIFICATE_VERIFY_FAILED" in federation.log("misled")
        assert "refused POST '/v1/fleet/activate-node' from 127.0.0.1: the key is unknown" in federation.log("gate")
        federation.start_node("again", {"partition-id": 0}, key=key)
        wait_until(lambda: "does not let this node in yet" in federation.log("again"), SLOW, "the key is in use")
        first.terminate()
        wait_until(lambda: "SuperNode ID" in federation.log("again"), SLOW, "the key is free")


EVIL = """import os
from pathlib import Path
from flwr.app import Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

Path({trace!r}, Path(os.environ["FLWR_HOME"]).name).touch()
client_app = ClientApp()
server_app = ServerApp()

@server_app.main()
def main(grid, context):
    for reply in grid.send_and_receive([Message(RecordDict(), node, "query.hello") for node in grid.get_node_ids()]):
        Path({trace!r}, "reply").write_text(reply.error.reason)
"""


def flwr(federation: LocalFederation, home: Path, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    """Run a command of Flower that finds the server's address in the folder `home`."""
    done = federation._flwr(*arguments, home=home)
    print(done.stdout.decode())
    return done


def test_no_one_but_the_operator_submits(tmp_path: Path) -> None:
    """An outsider has the public `ca.crt` and another project; a node has a registered key as well.

    Not even the operator's code runs on a node that is started by fedsat.
    """
    tls, known = credentials(tmp_path / "keys")
    project, trace, stranger = tmp_path / "evil", tmp_path / "traces", tmp_path / "stranger"
    for folder in (project, trace, stranger):
        folder.mkdir()
    (project / "federation_app.py").write_text(EVIL.format(trace=str(trace)))
    (project / "pyproject.toml").write_text(PROJECT.replace("fedsat.flower:", "federation_app:"))
    with LocalFederation(tmp_path, tls=tls, keys=known) as federation:
        operator = federation.folder / "homes" / "link"
        address = (operator / "config.toml").read_text()
        (stranger / "config.toml").write_text(address.replace(f":{federation.port}", f":{federation.door[1]}"))
        for command in (
            ["run", str(project), "fedsat"],
            ["supernode", "register", str(tmp_path / "keys" / "server" / "node-1.pub"), "fedsat"],
        ):
            done = flwr(federation, stranger, *command)
            assert done.returncode != 0
            assert b"this is not open to nodes" in done.stdout
        key = header_of(known / "node-0.pub")
        assert key is not None
        with httpx.Client(
            base_url=f"https://127.0.0.1:{federation.door[1]}",
            verify=ssl.create_default_context(cafile=str(tls.authority)),
            headers={"flwr-public-key": key.decode(), "content-type": "application/protobuf"},
        ) as node:
            for path in (
                "/v1/control/start-run",
                "/v1/fleet/../control/start-run",
                "/v1/runtime/acquire-task",
                "/docs",
            ):
                assert node.post(path).status_code == 404
            assert node.get("/health").status_code == 200
            assert node.post("/v1/fleet/pull-messages").status_code == 401  # a key without its signature
        assert not list(trace.iterdir())
        federation.start_node("node", {"partition-id": 0}, key=tmp_path / "keys" / "node-0" / "node")
        wait_until(lambda: "SuperNode ID" in federation.log("node"), SLOW, "the node is connected")
        assert flwr(federation, operator, "run", str(project), "fedsat").returncode == 0
        wait_until((trace / "reply").exists, SLOW, "the node replies to the operator's project")
        assert "No module named 'federation_app'" in (trace / "reply").read_text()
        assert {file.name for file in trace.iterdir()} == {"link", "reply"}  # its code did not run on the node
