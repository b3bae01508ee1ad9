"""What a node keeps on disk: the memories of runs, and an account of what it has sent that it never removes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from fedsat.errors import FedsatError
from fedsat.experiment.sealed import DamagedError

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedsat[flower]'")

from flwr.app import Context, RecordDict

from fedsat.flower.memory import Memory
from fedsat.flower.run_spec import RunSpec
from fedsat.flower.server import prepare
from fedsat.flower.stores import RUNS, Files
from fedsat.flower.terms import Terms
from tests.flower.test_survival import TERMS, configure, nodes
from tests.support.faulty_nodes import FaultyNodes

RUN = "0123456789abcdef" * 2


def test_files_of_a_node(tmp_path: Path) -> None:
    def state(number: int) -> Any:
        return {"v": {"w": torch.full((2,), float(number))}, "empty": {}}

    context = Context(0, 1, {"state": str(tmp_path)}, RecordDict(), {})
    with Memory.of(context, RUN) as memory:
        memory.store(3, 1, state(1))
        memory.store(3, 2, state(2))
        with memory.account() as account:
            account.spend({0.1: 2})
            account.labels, account.masked = torch.tensor([4, -1]), 7
        with pytest.raises(ZeroDivisionError), memory.account() as account:
            account.spend({0.1: 1 // 0})
        secret = memory.secret
    (tmp_path / RUN / "round-000009.safetensors.part").touch()  # left by a killed process
    with Memory.of(context, RUN) as memory:
        assert memory.client == 3
        with memory.account() as account:
            assert (account.spent, account.masked) == ({0.1: 2}, 7)
            assert account.labels is not None
            assert account.labels.tolist() == [4, -1]
        assert memory.secret == secret
        loaded = memory.load(1)
        assert loaded is not None
        assert loaded["v"]["w"].tolist() == [1.0, 1.0]
        assert loaded["empty"] == {}
        assert memory.load(2) is None
    assert {path.name for path in (tmp_path / RUN).iterdir()} == {"memory.json", "lock"}
    with Memory.of(context, "e" * 32) as memory, memory.account() as account:
        account.spend({0.1: 3, 0.2: 1})
        assert (account.spent, account.spent_in_all) == ({0.1: 3, 0.2: 1}, {0.1: 5, 0.2: 1})
        assert (account.labels, account.masked) == (None, 0)
    index = tmp_path / "account" / "memory.json"
    index.write_text(index.read_text().replace("-1", "-2"))
    with (
        pytest.raises(DamagedError, match=r"checksum of memory\.json is wrong"),
        Memory.of(context, RUN) as memory,
        memory.account(),
    ):
        pass  # what was spent of its privacy must not be forgotten silently


def test_old_runs_make_room(tmp_path: Path) -> None:
    for number in range(RUNS + 3):
        with Files.locked(tmp_path, f"{number:032x}") as files:
            files.save({"number": number})
    assert len(list(tmp_path.iterdir())) == RUNS


def test_folders_of_others_stay(tmp_path: Path) -> None:
    for name in ("photos", "0123456789ABCDEF" * 2, f"{0:031x}", f"{0:033x}"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "memory.json").touch()
    for number in range(RUNS + 3):
        with Files.locked(tmp_path, f"{number:032x}") as files:
            files.save({"number": number})
    assert len(list(tmp_path.iterdir())) == RUNS + 4


def test_errors_of_the_work_are_not_about_the_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FileNotFoundError, match="patients"), Files.locked(tmp_path, RUN):
        (tmp_path / "patients.csv").read_text()
    monkeypatch.setattr("fedsat.flower.stores.write_sealed", full_disk)
    with pytest.raises(FedsatError, match=rf"cannot write to .*{RUN}: No space"), Files.locked(tmp_path, RUN) as files:
        files.save({})


def full_disk(*_: Any, **__: Any) -> None:
    raise OSError(28, "No space left on device")


def test_a_run_cannot_leave_its_folder() -> None:
    text = RunSpec({}, ("a", "b"), False).text()
    assert RunSpec.of(text).id == ""
    with pytest.raises(ValueError, match="32 hexadecimal digits"):
        RunSpec.of(text.replace('"id": ""', '"id": "../../somewhere"'))


def test_a_node_that_cannot_write_its_state(clouds: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    grid = FaultyNodes({"dataset": str(clouds), "partition-id": 0, "state": str(tmp_path / "file" / "state")})
    with pytest.raises(FedsatError, match=r"0 of 4 nodes joined .* cannot write to"):
        prepare(grid, configure(clouds), Terms(wait=0.2))
    assert prepare(nodes(clouds, tmp_path), configure(clouds), TERMS).folder is None
