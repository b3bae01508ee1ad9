"""Differential privacy on real nodes: the same as in a simulation, and what nodes send, charge and refuse."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedsat
from fedsat.algorithms import Model
from fedsat.errors import UsageError
from fedsat.experiment import Run, train
from fedsat.models import build_model
from fedsat.rounds import Protection
from fedsat.rounds.ledger import gaussian_epsilon
from fedsat.rounds.noise import Source, seeded
from tests.flower.test_equality import assert_same, federate, nodes, settings
from tests.support.faulty_nodes import LENIENT, FaultyNodes

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedsat[flower]'")

from flwr.app import Context, RecordDict

import fedsat.flower.node_engine
import fedsat.flower.remote
from fedsat.flower.agreement import Agreement
from fedsat.flower.client import answer
from fedsat.flower.evaluation_messages import WorkerCounts
from fedsat.flower.memory import Memory
from fedsat.flower.messages import Hello, Refused, Train, Trained
from fedsat.flower.records import Message
from fedsat.flower.run_spec import RunSpec
from fedsat.flower.server import prepare
from fedsat.flower.stores import RUNS
from fedsat.flower.terms import Terms
from fedsat.flower.transport import Failure, Request

LOCAL = {"name": "local", "dp_clip": 0.3, "dp_noise": 0.2, "dp_counts": 0.01, "dp_samples": 9}
CENTRAL = {"name": "central", "dp_clip": 0.3, "dp_noise": 0.2}


class Quiet(Source):
    """Noise on counts that is zero: workers do not know which client's report is which, so seeds cannot agree."""

    def discrete(self, sigma: float, size: int) -> Any:
        return np.zeros(size, dtype=np.int64)


def repeatable(purpose: str, *place: int) -> Source:
    return Quiet() if purpose in ("private counts", "private labels") else seeded(3)(purpose, *place)


@pytest.fixture
def same_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    fedsat.flower.node_engine._cached_engine.cache_clear()
    monkeypatch.setattr(fedsat.flower.node_engine, "secure", repeatable)
    monkeypatch.setattr(fedsat.flower.remote, "secure", repeatable)


def simulate(table: dict[str, Any]) -> Run:
    run = fedsat.prepare(fedsat.configure(**table))
    run.setup.engine.protection = Protection(run.setup.config.privacy, repeatable)
    return train(run)


@pytest.mark.usefixtures("same_noise")
@pytest.mark.parametrize(
    ("method", "privacy", "counts"),
    [
        ("fedavg", LOCAL, "each"),
        ("scaffold", LOCAL, "each"),
        ("fedsat", LOCAL, "each"),
        ("fedsat", LOCAL, "sums"),
        ("fedavg", CENTRAL, "each"),
        ("feddyn", CENTRAL, "each"),
    ],
)
def test_nodes_compute_what_a_simulation_computes(
    method: str, privacy: dict[str, Any], counts: Any, clouds: Path
) -> None:
    table = settings(clouds, algorithm=method, privacy=privacy)
    alone = simulate(table)
    together = federate(
        FaultyNodes(*nodes(clouds)), fedsat.configure(**table), Terms(timeout=60, wait=60, worker_counts=counts)
    )
    for line, other in zip(together.records, alone.records, strict=True):
        assert line.metrics["worst_client_accuracy"] is None  # nodes do not report it
        for name in line.metrics:
            if "client" in name:
                line.metrics[name] = other.metrics[name]
        assert line.epsilon == pytest.approx(other.epsilon if privacy is LOCAL else unamplified(alone, line.round))
    assert_same(together, alone)


def test_a_private_run_with_a_folder_resumes(clouds: Path, tmp_path: Path) -> None:
    """Nodes report no accuracies, so a checkpoint contains an empty array."""
    config = fedsat.configure(**settings(clouds, algorithm="fedavg", privacy=LOCAL, rounds=2))
    terms, out = Terms(timeout=60, wait=60), tmp_path / "run"
    prepare(FaultyNodes(*nodes(clouds)), config, terms, out).run_round()
    run = federate(FaultyNodes(*nodes(clouds)), config, terms, out)
    assert "resumes after round 1 of 2" in run.notes[0]
    assert run.status == "completed"
    assert [line.round for line in run.records] == [1, 2]


def test_attempts_before_a_crash_are_charged(clouds: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server dies in round 1 before its first checkpoint, twice, and three times in round 2, after the replies."""
    config = fedsat.configure(**settings(clouds, algorithm="fedavg", privacy=LOCAL, per_round=5, rounds=4))
    terms, out = Terms(timeout=60, wait=60), tmp_path / "run"

    def dies(*_: Any) -> None:
        raise KeyboardInterrupt

    def start() -> Run:
        return prepare(FaultyNodes(*nodes(clouds)), config, terms, out)

    for finished, crashes in ((0, 2), (1, 3)):
        for _ in range(crashes):
            run = start()
            assert len(run.records) == finished
            with monkeypatch.context() as killed:
                killed.setattr(fedsat.flower.remote.RemoteEngine, "_joined", dies)
                with pytest.raises(KeyboardInterrupt):
                    run.run_round()
            assert run.checkpoints is not None
            run.checkpoints.release()
        run = start()
        run.run_round()
        assert run.checkpoints is not None
        run.checkpoints.release()
    run = train(start())
    assert [line.repeated for line in run.records] == [2, 3, None, None]  # a restart between rounds costs nothing
    sent = (3, 3 + 4, 3 + 4 + 1, 3 + 4 + 1 + 1)
    assert [line.epsilon for line in run.records] == [gaussian_epsilon(((0.2, n),), 1e-5) for n in sent]
    assert json.loads((out / "nodes.json").read_text())["attempts"] == {"3": 1, "4": 1}


def unamplified(run: Run, rounds: int) -> float:
    ledger = run.setup.config.ledger(on_nodes=True)
    assert ledger is not None
    return ledger.epsilon(rounds)


def test_a_budget_stops_a_federation(clouds: Path) -> None:
    free = fedsat.configure(**settings(clouds, algorithm="fedavg", privacy=CENTRAL, rounds=4))
    ledger = free.ledger(on_nodes=True)
    assert ledger is not None
    table = {**settings(clouds, algorithm="fedavg", privacy=CENTRAL, rounds=4), "budget": f"{ledger.epsilon(2)},1e-5"}
    run = federate(FaultyNodes(*nodes(clouds)), fedsat.configure(**table))
    assert [line.epsilon for line in run.records] == [ledger.epsilon(1), ledger.epsilon(2)]
    assert "privacy budget allows no further round" in str(run.stopped)


def test_repeated_requests_are_charged(clouds: Path) -> None:
    """A node does not reply to the first request, but it may have sent its update, so this round counts twice."""
    grid, asked = FaultyNodes(*nodes(clouds)), list[str]()

    def late(request: Request, reply: RecordDict) -> RecordDict | None:
        asked.append(request.kind)
        return None if request.kind == "train" and asked.count("train") == 1 else reply

    grid.faults[next(iter(grid.contexts))] = late
    table = settings(clouds, algorithm="fedavg", privacy=LOCAL, per_round=5, rounds=2)
    run = federate(grid, fedsat.configure(**table), Terms(1.0, timeout=0.5, wait=5))
    assert [line.repeated for line in run.records] == [1, None]
    noise = LOCAL["dp_noise"]
    assert [line.epsilon for line in run.records] == [gaussian_epsilon(((noise, n),), 1e-5) for n in (2, 3)]


def test_what_nodes_send_is_noised_and_carries_no_loss(clouds: Path) -> None:
    """The noise on T is drawn once; Z and TP get new noise for every model."""
    privacy = {**LOCAL, "dp_counts": 3.0}
    table = settings(clouds, algorithm="fedsat", privacy=privacy, per_round=2, workers=4, rounds=6)
    grid, labels, counts = FaultyNodes(*nodes(clouds)), dict[int, list[Any]](), list[float]()

    def listen(request: Request, reply: RecordDict) -> RecordDict:
        if request.kind == "train":
            trained = Trained.unpack(reply)
            assert trained.loss == 0
            counts.extend(trained.counts["counts"].flatten().tolist())
        elif request.kind == "evaluate.worker":
            found = WorkerCounts.unpack(reply)
            counts.extend(torch.cat([own.flatten() for own in found.counts.values()]).tolist())
            labels.setdefault(request.node, []).append(found.labels)
        return reply

    for node in grid.contexts:
        grid.faults[node] = listen
    run = federate(grid, fedsat.configure(**table))
    assert len(run.records) == 6
    assert np.std(counts) == pytest.approx(3.0 * 2 * 9, rel=0.3)  # counts themselves are at most 9
    assert max(sum(bool(one) for one in sent) for sent in labels.values()) == 1
    assert not any(kind == "evaluate" for _, kind in grid.requests)


def test_noise_on_labels_is_kept_when_a_node_joins_again(clouds: Path) -> None:
    records = RecordDict()
    memory = Memory.within(records)
    memory.reset()
    with memory.account() as account:
        account.labels = torch.tensor([3, -1])
        account.spend({0.2: 4})
    secret = memory.secret
    again = Memory.within(records)
    again.reset()
    assert again.secret != secret
    with again.account() as account:
        assert account.labels is not None
        assert account.labels.tolist() == [3, -1]
        assert account.spent == {0.2: 4}


def test_a_node_keeps_to_its_own_budget(clouds: Path, tmp_path: Path) -> None:
    """The server asks for more than the owner agreed to: the node refuses the request that would exceed its budget."""
    allowed = gaussian_epsilon(((4.0, 2),), 1e-5) + 1e-9
    own = tmp_path / "agreement.toml"
    own.write_text(LENIENT.read_text() + f'budget = "{allowed},1e-5"\n')
    table = settings(clouds, algorithm="fedavg", per_round=5, rounds=3)
    careful = [{**nodes(clouds)[0], "agreement": str(own), "state": str(tmp_path / "state")}, *nodes(clouds)[1:]]
    private = fedsat.configure(**table, privacy={"name": "local", "dp_noise": 4.0})
    grid, terms = FaultyNodes(*careful), Terms(timeout=5, wait=5, retries=0)
    run = federate(grid, private, terms)
    again = federate(FaultyNodes(*careful), private, terms)  # the budget is that of all runs
    assert not any(0 in line.clients for line in again.records)
    assert [0 in line.clients for line in run.records] == [True, True, False]
    assert "this node's privacy" in run.records[2].left_out[0]["why"]
    open_ = federate(FaultyNodes(*careful), fedsat.configure(**table), terms)
    assert 0 not in open_.records[0].clients
    assert "cannot participate: privacy must be 'local'" in open_.records[0].left_out[0]["why"]


def test_a_server_cannot_make_a_node_forget_what_it_has_spent(clouds: Path, tmp_path: Path) -> None:
    """It greets the node in other runs, asks in a run without an ID, and in the same run without its memory."""
    allowed = gaussian_epsilon(((4.0, 2),), 1e-5) + 1e-9
    own = tmp_path / "agreement.toml"
    own.write_text(LENIENT.read_text() + f'budget = "{allowed},1e-5"\n')
    context = Context(0, 1, {**nodes(clouds)[0], "agreement": str(own)}, RecordDict(), {})
    table = settings(clouds, algorithm="fedavg", privacy={"name": "local", "dp_noise": 4.0})
    run = RunSpec(fedsat.configure(**table).table(), ("0", "1", "2"), False, id="f" * 32, mean_samples=30.0)
    shape = fedsat.configure(**table).load_dataset().input_shape
    module = build_model(run.settings["model"], shape, 3, 0)
    model = Model({name: tensor.detach() for name, tensor in module.named_parameters()}, {})

    def asked(message: Message) -> str:
        reply = answer(message.kind, message.pack(), context)
        return Refused.unpack(reply).why if Refused.sent_in(reply) else ""

    def train_in(run_id: str) -> str:
        return asked(Train(replace(run, id=run_id), 0, 1, 0, model, {}, False))

    with pytest.raises(UsageError, match=r"needs a folder for what it has spent \(state\)"):
        Agreement.of_node(context.node_config)
    assert asked(Hello(run)).startswith("UsageError")
    context.node_config["state"] = str(tmp_path / "state")
    assert asked(Hello(run)) == train_in(run.id) == train_in(run.id) == ""
    for number in range(2 * RUNS):
        assert asked(Hello(replace(run, id=f"{number:032x}"))) == ""
    assert list((tmp_path / "state" / run.id).glob("round-*"))  # greetings remove no state
    for run_id in (run.id, f"{0:032x}", "e" * 32, ""):
        context.state = RecordDict()  # as in a new Flower run
        assert "would spend ε" in train_in(run_id)
    shutil.rmtree(tmp_path / "state" / run.id)  # as after many other runs
    assert "would spend ε" in train_in(run.id)


def test_an_update_that_its_node_did_not_clip_is_refused(clouds: Path) -> None:
    grid = FaultyNodes(*nodes(clouds))

    def longer(request: Request, reply: RecordDict) -> RecordDict | Failure:
        if request.kind != "train":
            return reply
        sent = Trained.unpack(reply)
        for tensor in sent.model.params.values():
            tensor.add_(0.1)
        forged = sent.pack()
        forged["request"] = reply["request"]
        return forged

    grid.faults[next(iter(grid.contexts))] = longer
    table = settings(clouds, algorithm={"name": "fedsat", "weighting": "uniform"}, privacy=CENTRAL, per_round=5)
    run = federate(grid, fedsat.configure(**table), Terms(timeout=5, wait=5, retries=0))
    assert all(0 not in line.clients and len(line.clients) == 4 for line in run.records)
    assert "long, but dp_clip is 0.3" in run.records[0].left_out[0]["why"]


@pytest.mark.parametrize(
    ("others", "terms", "why"),
    [
        ({}, Terms(wait=0.1, test="nodes", class_names="a,b,c"), "test is 'nodes'"),
        ({"client_accuracy": "local"}, Terms(wait=0.1), "client_accuracy is 'local'"),
        ({"client_accuracy": "test-split"}, Terms(wait=0.1), "client_accuracy is 'test-split'"),
    ],
)
def test_exact_numbers_are_refused(others: dict[str, Any], terms: Terms, why: str, clouds: Path) -> None:
    table = settings(clouds, algorithm="fedavg", privacy=CENTRAL, **others)
    with pytest.raises(UsageError, match=why):
        prepare(FaultyNodes(*nodes(clouds)), fedsat.configure(**table), terms)
