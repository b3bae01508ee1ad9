"""An interrupted federation ends like an uninterrupted one if the clients' states survive."""

from __future__ import annotations

import json
import logging
import re
import socket
from pathlib import Path
from typing import Any

import pytest
import torch

import fedsat
from fedsat.cli import main
from fedsat.errors import FedsatError
from fedsat.experiment import Run, train
from fedsat.experiment.checkpoint import KIND
from fedsat.experiment.sealed import DamagedError, read_sealed, write_sealed

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedsat[flower]'")

from flwr.app import Context, RecordDict

from fedsat.flower.memory import Memory
from fedsat.flower.run_spec import RunSpec
from fedsat.flower.server import prepare
from fedsat.flower.stores import RUNS, Files
from fedsat.flower.terms import Terms
from tests.support.faulty_nodes import FaultyNodes

CLIENTS, ROUNDS = 4, 4
TERMS = Terms(timeout=5, wait=5)
RUN = "0123456789abcdef" * 2


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


def test_a_status_that_cannot_be_written_ends_no_run(
    clouds: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    run = prepare(nodes(clouds, tmp_path / "disk"), configure(clouds), TERMS, tmp_path / "run")
    (tmp_path / "run" / "status.json.part").mkdir()
    run.run_round()
    assert not (tmp_path / "run" / "status.json").exists()
    assert caplog.text.count("status.json cannot be written: Is a directory") == 1
    (tmp_path / "run" / "status.json.part").rmdir()
    run.run_round()
    assert json.loads((tmp_path / "run" / "status.json").read_text())["round"] == 2


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


def test_the_status_of_nodes(clouds: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Client 0 replies, client 1 is silent, client 2 leaves, and client 3 never joins."""
    grid, out = nodes(clouds, tmp_path / "disk", [0, 1, 2]), tmp_path / "run"
    seen: list[str] = []

    def fault(request: Any, reply: Any) -> Any:
        seen.append(shown(out, capsys))  # the server has sent the last request of this round
        return None

    run = prepare(grid, configure(clouds, per_round=CLIENTS), Terms(timeout=1.5, wait=0.2, min_fraction=0.25), out)
    one, two = (next(n for n, c in grid.contexts.items() if c.node_config["partition-id"] == k) for k in (1, 2))
    grid.faults[one] = lambda request, reply: reply if request.kind == "query.hello" else fault(request, reply)
    grid.leave(two)
    run.run_round()
    assert "round 1, train; the server is running and wrote this 0 s ago" in seen[0]
    assert "working for" in seen[0]
    after = shown(out, capsys)
    for pattern in (rf"0 +{one - 1} +here", rf"1 +{one} +silent since", rf"2 +{two} +gone since", "3 +has not joined"):
        assert re.search(pattern, after), (pattern, after)
    written = json.loads((out / "status.json").read_text())
    written["server"] |= {"pid": 2**22 + 1, "time": written["server"]["time"] - 7300}
    (out / "status.json").write_text(json.dumps(written))
    assert "the server is not running; it wrote this 2 h ago" in shown(out, capsys)
    written["server"]["host"] = "elsewhere"
    (out / "status.json").write_text(json.dumps(written))
    assert "; the server wrote this 2 h ago" in shown(out, capsys)
    train(run)
    written["server"] |= {"host": socket.gethostname()}
    (out / "status.json").write_text(json.dumps(written))
    assert "completed after 4 rounds" in shown(out, capsys)
    (out / "status.json").write_text("{}")
    assert "cannot be read" in shown(out, capsys)
    assert "no status; it does not train on real nodes" in shown(tmp_path / "nowhere", capsys)


def shown(folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit):
        main(["status", str(folder)])
    printed = capsys.readouterr()
    return printed.out + printed.err
