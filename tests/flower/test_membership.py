"""Which node is which client: a number belongs to the key of the node that had it first."""

from __future__ import annotations

from pathlib import Path

import pytest

import fedsat
from fedsat.experiment import train

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedsat[flower]'")


from fedsat.flower.server import prepare
from fedsat.flower.terms import Terms
from tests.flower.test_survival import CLIENTS, begun, configure, nodes, resumed
from tests.support.faulty_nodes import FaultyNodes


def join(grid: FaultyNodes, clouds: Path, client: int, state: Path) -> int:
    return grid.join({"dataset": str(clouds), "partition-id": client, "state": str(state)})


def test_a_number_belongs_to_its_key(clouds: Path, tmp_path: Path) -> None:
    """Another key that claims a client's number is refused while its node is gone, and after the server's restart."""
    config, disk = configure(clouds, algorithm="scaffold", per_round=CLIENTS), tmp_path / "disk"
    terms = Terms(timeout=5, wait=0.3)
    grid = nodes(clouds, disk)
    run = prepare(grid, config, terms, tmp_path / "run")
    run.run_round()
    grid.leave(next(iter(grid.contexts)) + 2)
    thief = join(grid, clouds, 2, tmp_path / "thief")
    run.run_round()
    assert 2 not in run.records[1].clients
    assert f"node {thief} cannot participate: client 2 belongs to a node with another key" in str(
        [note["why"] for note in run.records[1].left_out]
    )
    owner = join(grid, clouds, 2, disk / "2")
    run.run_round()
    assert (2 in run.records[2].clients, (thief, "train") in grid.requests) == (True, False)
    del run

    grid = nodes(clouds, disk, [0, 1, 3])
    grid._started += owner  # the IDs of later nodes are new
    thief = join(grid, clouds, 2, tmp_path / "thief")
    unnumbered = grid.join({"folder": str(clouds), "state": str(tmp_path / "unnumbered")})
    run = train(prepare(grid, config, terms, tmp_path / "run"))
    assert sorted(run.records[3].clients) == [0, 1, 3]
    assert not {(thief, "train"), (unnumbered, "train")} & set(grid.requests)
    assert "every client belongs to a node with another key" in str(run.records[3].left_out)


def test_the_place_of_a_lost_node_is_given_away_on_purpose_only(clouds: Path, tmp_path: Path) -> None:
    config, disk = configure(clouds, algorithm="scaffold", per_round=CLIENTS, rounds=3), tmp_path / "disk"
    begun(config, clouds, tmp_path, rounds=1, terms=Terms(timeout=5, wait=5))
    grid = nodes(clouds, disk, [0, 2, 3])
    grid._started += CLIENTS
    new = join(grid, clouds, 1, tmp_path / "new")
    run = prepare(grid, config, Terms(timeout=5, wait=0.3, replace="1"), tmp_path / "run")
    run.run_round()
    assert 1 in run.records[1].clients
    assert run.setup.engine.remembered()["owners"]["1"] == new
    assert any("it lost its state" in note["why"] for note in run.records[1].left_out)
    assert Terms(replace="2, 5").replaceable(9) == {2, 5}
    assert Terms(replace="all").replaceable(3) == {0, 1, 2}
    with pytest.raises(fedsat.UsageError, match=r"terms.replace is 'two'; it must be numbers of clients such as 2,5"):
        Terms(replace="two")


def test_a_key_of_flower_keeps_its_number_without_its_state(clouds: Path, tmp_path: Path) -> None:
    """The SuperLink gives a node key the same node ID after every start, so its node may have lost its disk."""
    config, disk = configure(clouds, algorithm="scaffold", per_round=CLIENTS, rounds=3), tmp_path / "disk"
    begun(config, clouds, tmp_path, rounds=1)
    (disk / "1").rename(tmp_path / "lost")
    run = resumed(config, nodes(clouds, disk), tmp_path)
    assert 1 in run.records[1].clients
