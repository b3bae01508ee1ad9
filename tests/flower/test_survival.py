"""An interrupted federation ends like an uninterrupted one if the clients' states survive."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import fedsat
from fedsat.errors import FedsatError
from fedsat.experiment import Run, train
from fedsat.experiment.checkpoint import KIND
from fedsat.experiment.sealed import read_sealed, write_sealed

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedsat[flower]'")


from fedsat.flower.server import prepare
from fedsat.flower.terms import Terms
from tests.support.faulty_nodes import FaultyNodes

CLIENTS, ROUNDS = 4, 4
TERMS = Terms(timeout=5, wait=5)


def configure(clouds: Path, **others: Any) -> fedsat.Config:
    usual = {"clients": CLIENTS, "per_round": 3, "workers": 2, "rounds": ROUNDS, "epochs": 1, "batch_size": 8}
    table = {"dataset": str(clouds), "partition": {"name": "ls", "beta": 0.5}, "lr": 0.05, **usual, **others}
    return fedsat.configure(**table)


def nodes(clouds: Path, disk: Path, clients: Any = range(CLIENTS)) -> FaultyNodes:
    """Start the processes of nodes, whose states are on disk."""
    shares = ({"dataset": str(clouds), "partition-id": client, "state": str(disk / f"{client}")} for client in clients)
    return FaultyNodes(*shares)


def begun(config: fedsat.Config, clouds: Path, folder: Path, rounds: int, terms: Terms = TERMS) -> None:
    """Run some rounds, and end without any cleanup, as after SIGKILL."""
    run = prepare(nodes(clouds, folder / "disk"), config, terms, folder / "run")
    for _ in range(rounds):
        run.run_round()


def resumed(config: fedsat.Config, grid: FaultyNodes, folder: Path, terms: Terms = TERMS) -> Run:
    return train(prepare(grid, config, terms, folder / "run"))


def assert_equal(run: Run, other: Run) -> None:
    """Everything but times and bytes is the same, to the last bit."""
    for mine, wanted in (
        (run.model.params, other.model.params),
        *((run.training.server.memory[name], tree) for name, tree in other.training.server.memory.items()),
    ):
        assert all(torch.equal(mine[name], tensor) for name, tensor in wanted.items())
    for line, known in zip(run.records, other.records, strict=True):
        assert (line.clients, line.weights, line.metrics) == (known.clients, known.weights, known.metrics)


@pytest.mark.parametrize("method", ["scaffold", "feddyn", "moon", "fedsat"])
def test_server_and_nodes_start_again(method: str, clouds: Path, tmp_path: Path) -> None:
    config = configure(clouds, algorithm=method)
    alone = train(prepare(nodes(clouds, tmp_path / "alone"), config, TERMS))
    begun(config, clouds, tmp_path, rounds=2)
    run = resumed(config, nodes(clouds, tmp_path / "disk", reversed(range(CLIENTS))), tmp_path)
    assert "resumes after round 2 of 4" in run.notes[0]
    assert_equal(run, alone)
    assert not any(note["stage"] == "train" for line in run.records for note in line.left_out)


def test_nodes_that_are_ahead_of_the_server_go_back(
    clouds: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server is killed after the clients of round 3 have trained, before its checkpoint."""
    config = configure(clouds, algorithm="scaffold", per_round=CLIENTS)
    alone = train(prepare(nodes(clouds, tmp_path / "alone"), config, TERMS))
    run = prepare(nodes(clouds, tmp_path / "disk"), config, TERMS, tmp_path / "run")
    run.run_round()
    run.run_round()
    with monkeypatch.context() as killed:
        killed.setattr(Run, "save_checkpoint", lambda self: None)
        run.run_round()
    del run
    assert_equal(resumed(config, nodes(clouds, tmp_path / "disk"), tmp_path), alone)


def test_a_new_node_without_the_state(clouds: Path, tmp_path: Path) -> None:
    config = configure(clouds, algorithm="scaffold", per_round=CLIENTS)
    begun(config, clouds, tmp_path, rounds=2)
    (tmp_path / "disk" / "1").rename(tmp_path / "gone")
    damaged = next((tmp_path / "disk" / "2").glob("*/round-*"))
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"?")
    run = resumed(config, nodes(clouds, tmp_path / "disk"), tmp_path)
    lost = [note["client"] for note in run.records[2].left_out if "it lost its state" in note["why"]]
    assert sorted(lost) == [1, 2]
    assert run.status == "completed"
    assert sorted(run.records[2].clients) == [0, 1, 2, 3]


def test_nodes_without_numbers_stay_the_clients_that_they_were(clouds: Path, tmp_path: Path) -> None:
    config = configure(clouds, algorithm="scaffold", per_round=CLIENTS)

    def start(order: list[int]) -> FaultyNodes:
        return FaultyNodes(*({"folder": str(clouds), "state": str(tmp_path / f"{number}")} for number in order))

    run = prepare(start([0, 1, 2, 3]), config, TERMS, tmp_path / "run")
    run.run_round()
    del run
    run = prepare(start([2, 0, 3, 1]), config, TERMS, tmp_path / "run")
    run.run_round()
    assert not [note for note in run.records[1].left_out if note["stage"] == "train"]


def test_what_the_nodes_said_at_first_stays_valid(clouds: Path, tmp_path: Path) -> None:
    """The normalisation is that of all nodes, although one of them is missing when the server starts again."""
    terms = Terms(timeout=5, wait=0.2, test="nodes", class_names="0,1,2")
    config = configure(clouds, algorithm="fedsat", per_round=2)
    begun(config, clouds, tmp_path, rounds=1, terms=terms)
    run = prepare(nodes(clouds, tmp_path / "disk", [0, 2, 3]), config, terms, tmp_path / "run")
    known, stored = (
        json.loads(one["run"])
        for one in (
            run.setup.engine.remembered(),
            json.loads((tmp_path / "run" / "checkpoints" / "round-000001.json").read_text())["checkpoint"]["nodes"],
        )
    )
    assert known == stored
    assert len(run.setup.engine.remembered()["infos"]) == CLIENTS


def test_what_cannot_be_resumed(clouds: Path, tmp_path: Path) -> None:
    config, disk = configure(clouds, algorithm="fedavg"), tmp_path / "disk"
    begun(config, clouds, tmp_path, rounds=1)
    with pytest.raises(fedsat.UsageError, match=r"a run with other settings: lr was 0.05 and is 0.1"):
        prepare(nodes(clouds, disk), configure(clouds, algorithm="fedavg", lr=0.1), TERMS, tmp_path / "run")
    with pytest.raises(fedsat.UsageError, match=r"max_weight was 20.0 and is 2"):
        prepare(nodes(clouds, disk), config, Terms(wait=5, max_weight=2), tmp_path / "run")
    with pytest.raises(fedsat.UsageError, match="checkpoint_every is 5; on real nodes"):
        prepare(nodes(clouds, disk), configure(clouds, checkpoint_every=5), TERMS, tmp_path / "run")
    run = prepare(nodes(clouds, disk), config, TERMS, tmp_path / "run")
    with pytest.raises(fedsat.UsageError, match="in use by another process"):
        prepare(nodes(clouds, disk), config, TERMS, tmp_path / "run")
    train(run)
    with pytest.raises(fedsat.UsageError, match="is complete with 4 rounds"):
        prepare(nodes(clouds, disk), config, TERMS, tmp_path / "run")


@pytest.mark.parametrize(
    ("older", "lacks"),
    [
        ({"shape": None}, "NoneType"),
        ({"terms": {}}, "'test'"),
        ({"run": "{}"}, "'mean'"),
        ({"infos": {"0": {}}}, "'moments'"),
    ],
)
def test_a_checkpoint_of_an_older_version_is_refused(
    older: dict[str, Any], lacks: str, clouds: Path, tmp_path: Path
) -> None:
    config = configure(clouds, algorithm="fedavg")
    begun(config, clouds, tmp_path, rounds=1)
    path = tmp_path / "run" / "checkpoints" / "round-000001.json"
    body = read_sealed(path, KIND)
    body["nodes"] |= older
    write_sealed(path, KIND, body)
    with pytest.raises(FedsatError, match=rf"run cannot be resumed: its checkpoint is damaged, .*{lacks}"):
        prepare(nodes(clouds, tmp_path / "disk"), config, TERMS, tmp_path / "run")


def test_a_run_on_nodes_can_be_made_longer(clouds: Path, tmp_path: Path) -> None:
    longer = configure(clouds, algorithm="scaffold", rounds=ROUNDS + 1)
    alone = train(prepare(nodes(clouds, tmp_path / "alone"), longer, TERMS))
    resumed(configure(clouds, algorithm="scaffold"), nodes(clouds, tmp_path / "disk"), tmp_path)
    assert_equal(resumed(longer, nodes(clouds, tmp_path / "disk"), tmp_path), alone)
