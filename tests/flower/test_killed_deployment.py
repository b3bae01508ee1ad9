"""`fedsat superlink`, nodes with keys, and `flwr run`, without `fedsat federate`: parts are killed with SIGKILL."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file
from torch.testing import assert_close

import fedsat
from fedsat.experiment import train
from fedsat.experiment.folder import read_records
from tests.support.faulty_nodes import wait_until

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedsat[flower]'")

from fedsat.flower.server import prepare
from fedsat.flower.terms import Terms
from tests.support.faulty_nodes import FaultyNodes
from tests.support.killed_deployment import Deployment

SLOW = 240.0
"""Seconds that a round may take on a busy machine, with everything that a kill costs."""
NODES = 2


@pytest.mark.skipif(sys.platform != "linux", reason="processes are found in /proc")
def test_the_server_is_killed_in_parts(clouds: Path, tmp_path: Path) -> None:
    """First the ServerApp, and then the SuperLink. `python -m benchmarks.kills --tls` also kills nodes, and everything.

    (The SuperLink lets a killed node with a key in again only after a minute.)
    """
    config = fedsat.configure(
        dataset=str(clouds), clients=NODES, per_round=NODES, rounds=4, partition="iid", algorithm="scaffold", workers=1,
        epochs=1, batch_size=8, lr=0.05, evaluate_every=4,
    )  # fmt: skip
    deployment, draw = Deployment(tmp_path / "run", config, {"min_fraction": 1.0}), random.Random(0)
    try:
        deployment.start()
        for part in ("ServerApp", "SuperLink"):
            before = deployment.rounds
            wait_until(lambda before=before: deployment.tend() or deployment.rounds > before, SLOW, "a round ends")  # type: ignore[misc]
            assert deployment.kill(part, draw)
        recorded = deployment.rounds
        deployment.finish()
    finally:
        deployment.end()
    assert recorded < 4
    alone = train(prepare(FaultyNodes(*shares(clouds)), config, Terms(wait=5)))
    saved = load_file(tmp_path / "run" / "model.safetensors")
    for name, tensor in alone.model.params.items():
        assert_close(saved[name], tensor, rtol=1e-5, atol=1e-7)
    records = read_records(tmp_path / "run")
    assert [record.metrics for record in records] == [record.metrics for record in alone.records]
    assert not any("lost its state" in note["why"] for record in records for note in record.left_out)


def shares(clouds: Path) -> list[dict[str, object]]:
    return [{"dataset": str(clouds), "partition-id": client} for client in range(NODES)]
