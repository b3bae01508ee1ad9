"""Clients' states on disk: runs end like those that keep them in memory, and leave no files behind."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
import torch

import fedsat
from fedsat.errors import FedsatError
from fedsat.experiment.checkpoint import CLIENTS, FOLDER
from fedsat.experiment.client_states import PREFIX, StateFolder, StoredState
from fedsat.tree import KeptStates
from tests.support.runs import TINY, killed_after, results

CPU = torch.device("cpu")


def state(value: float) -> dict[str, dict[str, torch.Tensor]]:
    """Return a state of 16 bytes, and an empty tree."""
    return {"dual": {"weight": torch.full((1, 3), value), "bias": torch.full((1, 1), -value)}, "objective": {}}


def outcome(folder: Path) -> dict[str, object]:
    """Return the results of a run apart from its configuration, which has `state_memory`."""
    return {name: found for name, found in results(folder).items() if name != "config.toml"}


def files(folder: Path) -> list[str]:
    return [path.name for place in folder.glob(PREFIX + "*") for path in place.iterdir()]


def test_states_that_exceed_the_memory_are_stored_and_read_back(tmp_path: Path) -> None:
    states: KeptStates = {client: state(float(client)) for client in range(5)}
    folder = StateFolder(tmp_path, 32e-9, CPU)  # room for two states of 16 bytes
    folder.overflow(states, [1, 2, 3, 4])
    assert [isinstance(states[client], StoredState) for client in range(5)] == [False, True, True, True, False]
    assert list(states[3]) == ["dual", "objective"]
    assert states[3]["objective"] == {}
    assert list(states[3]["dual"]) == ["weight", "bias"]
    assert torch.equal(states[3]["dual"]["weight"], torch.full((1, 3), 3.0))
    with pytest.raises(KeyError):
        states[3]["momentum"]
    assert len(files(tmp_path)) == 3


def test_a_file_lives_as_long_as_its_state(tmp_path: Path) -> None:
    folder = StateFolder(tmp_path, 0, CPU)
    states: KeptStates = {0: state(0.0), 1: state(1.0)}
    folder.overflow(states, [0, 1])
    before = dict(states)
    states[0] = state(7.0)
    folder.overflow(states, [0])
    assert before[0]["dual"]["bias"].item() == 0
    assert states[0]["dual"]["bias"].item() == -7
    assert len(files(tmp_path)) == 3
    del before
    gc.collect()
    assert len(files(tmp_path)) == 2
    del states, folder
    gc.collect()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("engine", ["stacked", "sequential"])
@pytest.mark.parametrize("method", ["fedsat", "scaffold", "moon"])
def test_a_run_with_states_on_disk_equals_one_in_memory(tmp_path: Path, method: str, engine: str) -> None:
    settings = {**TINY, "algorithm": method, "engine": engine}
    fedsat.run(**settings, out=tmp_path / "memory")
    fedsat.run(**settings, state_memory=0.0, out=tmp_path / "disk")
    assert outcome(tmp_path / "disk") == outcome(tmp_path / "memory")


def test_without_a_folder_states_go_to_a_temporary_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    run = fedsat.run(**{**TINY, "algorithm": "feddyn"}, state_memory=0.0)
    assert len(files(tmp_path)) == len(run.training.states)
    del run
    gc.collect()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("resumed", [0.0, 1.0])
def test_a_killed_run_with_states_on_disk_continues(tmp_path: Path, resumed: float) -> None:
    fedsat.run(**{**TINY, "algorithm": "scaffold"}, out=tmp_path / "whole")
    killed_after(5, tmp_path / "killed", algorithm="scaffold", state_memory=0.0)
    left = tmp_path / "killed" / (PREFIX + "left")  # as SIGKILL leaves it
    left.mkdir()
    config = tmp_path / "killed" / "config.toml"
    config.write_text(config.read_text().replace("state_memory = 0.0", f"state_memory = {resumed}"))
    run = fedsat.resume(tmp_path / "killed")
    assert not left.exists()
    assert outcome(tmp_path / "killed") == outcome(tmp_path / "whole")
    assert {isinstance(one, StoredState) for one in run.training.states.values()} >= {resumed == 0}


def test_checkpoints_hold_links_and_are_pruned(tmp_path: Path) -> None:
    fedsat.run(**{**TINY, "algorithm": "scaffold"}, state_memory=0.0, out=tmp_path / "run")
    kept = sorted(path.name for path in (tmp_path / "run" / FOLDER).iterdir() if path.is_dir())
    assert kept == [f"round-000006.{CLIENTS}"]
    gc.collect()
    assert not list((tmp_path / "run").glob(PREFIX + "*"))


def test_a_damaged_state_makes_the_checkpoint_before_it_the_newest(tmp_path: Path) -> None:
    fedsat.run(**{**TINY, "algorithm": "scaffold"}, out=tmp_path / "whole")
    killed_after(5, tmp_path / "run", algorithm="scaffold", state_memory=0.0)
    newest = tmp_path / "run" / FOLDER / f"round-000004.{CLIENTS}"
    path = next(newest.iterdir())
    path.unlink()
    path.write_bytes(b"damaged")
    run = fedsat.resume(tmp_path / "run")
    assert f"the checkpoint of round 4 is damaged (the checksum of {path.name} is wrong)" in run.notes[0]
    assert outcome(tmp_path / "run") == outcome(tmp_path / "whole")


def test_a_failed_round_keeps_the_states_of_the_round_before(tmp_path: Path) -> None:
    run = fedsat.prepare(fedsat.configure(**{**TINY, "algorithm": "scaffold"}, state_memory=0.0), tmp_path)
    run.run_round()
    before = {client: kept["control"] for client, kept in run.training.states.items()}

    class Fails:
        def round(self, *_: object) -> None:
            raise FedsatError("no")

    with pytest.raises(FedsatError):
        run.run_round([Fails()])  # type: ignore[list-item]
    after = {client: kept["control"] for client, kept in run.training.states.items()}
    assert before.keys() == after.keys()
    assert all(torch.equal(tree[name], after[client][name]) for client, tree in before.items() for name in tree)
