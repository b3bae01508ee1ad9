"""Real processes on this machine: a SuperLink, four SuperNodes, and runs submitted to them."""

from __future__ import annotations

import runpy
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from torch.testing import assert_close

import fedsat
from tests.support.faulty_nodes import wait_until

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedsat[flower]'")

from fedsat.cli import main
from fedsat.cli.federate import start_nodes, submit
from fedsat.experiment.checkpoint import FOLDER as CHECKPOINTS
from fedsat.experiment.folder import read_records, read_summary
from fedsat.flower.processes import MARK, LocalFederation, Tls
from fedsat.flower.terms import Terms

NODES = 4
SLOW = 120.0
"""Seconds that a run may take on a busy machine."""
CREDENTIALS = Path(__file__).parent.parent.parent / "examples" / "flower" / "credentials.py"


def settings(clouds: Path, **others: Any) -> dict[str, Any]:
    usual = {"clients": NODES, "per_round": 3, "workers": 2, "rounds": 3, "epochs": 2, "batch_size": 4, "lr": 0.05}
    shared = {"dataset": str(clouds), "partition": {"name": "ls", "beta": 0.5}, "engine": "sequential"}
    return {**shared, **usual, "evaluate_every": 3, "checkpoint_every": 0, **others}


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory, clouds: Path) -> Iterator[LocalFederation]:
    """One federation of four nodes for all runs of this file."""
    with LocalFederation(tmp_path_factory.mktemp("federation")) as running:
        start_nodes(running, fedsat.configure(**settings(clouds)))
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
        assert not mine.left_out
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


def test_unregistered_nodes_are_refused(tmp_path: Path) -> None:
    make_credentials = runpy.run_path(str(CREDENTIALS))["make_credentials"]
    for name in ("ours", "theirs"):
        make_credentials(tmp_path / name, 2, ["127.0.0.1"])
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    tls = Tls(ours / "ca.crt", ours / "server.crt", ours / "server.key")
    with LocalFederation(tmp_path, tls, authenticate=True) as federation:
        federation.register(ours / "node-0.pub")
        federation.start_node("known", {"partition-id": 0}, key=ours / "node-0")
        once = ("--max-retries", "1")
        unknown = federation.start_node("unknown", {"partition-id": 1}, *once, key=ours / "node-1")
        misled = federation.start_node("misled", {}, *once, key=ours / "node-0", authority=theirs / "ca.crt")
        wait_until(lambda: "SuperNode ID" in federation.log("known"), SLOW, "the registered node is connected")
        for name, process in (("unknown", unknown), ("misled", misled)):
            assert process.wait(SLOW) != 0
            assert "Failed to initialize the connection" in federation.log(name)
            assert "SuperNode ID" not in federation.log(name)
        assert "Failed to activate SuperNode" in federation.log("unknown")
        assert "CERTIFICATE_VERIFY_FAILED" in federation.log("misled")
