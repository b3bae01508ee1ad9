"""Messages can be sent and read back, and broken ones are refused. Masks, memory and moments by hand."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch

import fedsat
from fedsat.algorithms import Model

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedsat[flower]'")

from flwr.app import ArrayRecord, Context, RecordDict
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto

from fedsat.flower import masks
from fedsat.flower.client import handle
from fedsat.flower.evaluation_messages import Evaluate, Evaluated, EvaluateWorker, WorkerCounts
from fedsat.flower.influence import pooled_moments
from fedsat.flower.memory import Memory
from fedsat.flower.messages import Hello, NodeInfo, Train, Trained
from fedsat.flower.node_data import federation_of, load_share
from fedsat.flower.records import Message, MessageError, size
from fedsat.flower.run_spec import RunSpec
from fedsat.flower.secure_messages import Introduce, Introduced, Reveal, Revealed, Share, Shared
from fedsat.flower.server import read_run_config
from fedsat.flower.terms import Terms
from fedsat.flower.transport import readable_reason
from fedsat.secure.protocol import Introduction

RUN = RunSpec({"lr": 0.1, "algorithm": {"name": "fedavg"}}, ("cat", "dog"), False, (0.1 + 0.2,), (1 / 3,), 10 / 3)
MODEL = Model({"w": torch.randn(2, 3), "b": torch.zeros(3)}, {"seen": torch.tensor(7)})
STATE = {"direction": {"w": torch.ones(2, 3)}}
COUNTS = torch.tensor([[3, 1], [2, 1], [2, 2]])
KEY_PARTS = (b"a" * 32, b"b" * 32, b"c" * 32)
KEYS = Introduction(*KEY_PARTS)
MESSAGES: list[Message] = [
    Hello(RUN),
    NodeInfo(3, (1, 28, 28), 5, "ab" * 32, {"mean": torch.zeros(1)}, {}, 2, 1, 4),
    NodeInfo(-1, (6,), 5, "ab" * 32, {}, {"class_counts": torch.tensor([5, 0])}),
    Train(RUN, 2, 5, 3, MODEL, STATE, True),
    Trained(MODEL, STATE, 10, 20, 3.5, False, {"counts": COUNTS[:2], "labels": COUNTS[2]}),
    EvaluateWorker(RUN, 1, {"a1": MODEL, "b2": MODEL}, "nonce", True, {"a1": {"aa": 1, "bb": -1}}),
    WorkerCounts({"a1": COUNTS[:2], "b2": COUNTS[:2]}, {"labels": COUNTS[2]}),
    Evaluate(RUN, 1, "held-out", [MODEL] * 11),
    Evaluate(RUN, 1, "expected", [], {"recalls": torch.tensor([[0.5, torch.nan]])}),
    Evaluated({"accuracy": torch.tensor([0.25])}),
    Introduce(RUN, 2, 5, "nonce"),
    Introduced(KEYS, 0),
    Share(RUN, 2, {2: KEYS, 4: Introduction(*KEY_PARTS, bytes(64))}),
    Shared({2: b"x" * 148, 4: b"y" * 148}),
    Train(RUN, 2, 5, 3, MODEL, STATE, False, inbox={4: b"x" * 148}),
    Trained(Model({}, {}), {}, 10, 20, 0.0, False, masked={"words": COUNTS[0]}),
    Reveal(RUN, 2, (2, 4)),
    Revealed({2: b"x" * 66, 4: b"y" * 66}),
]


def plain(value: Any) -> Any:
    """Return a message as plain values that can be compared."""
    if isinstance(value, torch.Tensor):
        return (str(value.dtype), value.nan_to_num(-1).tolist())
    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items()}
    if isinstance(value, list):
        return [plain(part) for part in value]
    return plain(vars(value)) if hasattr(value, "__dataclass_fields__") else value


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.name)
def test_messages_can_be_sent_and_read_back(message: Message) -> None:
    sent = recorddict_from_proto(recorddict_to_proto(message.pack()))
    assert plain(type(message).unpack(sent)) == plain(message)
    assert size(sent) == size(message.pack()) > 0


def test_trees_shared_by_messages_are_packed_once() -> None:
    packed: dict[int, ArrayRecord] = {}
    first, second = (Train(RUN, client, 1, 0, MODEL, {}, False).pack(packed) for client in (0, 1))
    assert first["model:params"] is second["model:params"]


def test_other_versions_and_other_messages_are_refused() -> None:
    records = Hello(RUN).pack()
    with pytest.raises(MessageError, match="not a 'node_info' message"):
        NodeInfo.unpack(records)
    records.config_records["fedsat"]["version"] = 99
    with pytest.raises(MessageError, match="message version 99, expected 8; install the same version"):
        Hello.unpack(records)
    with pytest.raises(MessageError, match="not a 'hello' message"):
        Hello.unpack(RecordDict())


@pytest.mark.parametrize(
    ("reason", "readable"),
    [
        ("<class 'fedsat.errors.DataError'>:<'there is no folder x'>", "there is no folder x"),
        ("<class 'RuntimeError'>:<'two\nlines'>", "RuntimeError: two lines"),
        ("node unavailable", "node unavailable"),
        (None, "an error without a reason"),
    ],
)
def test_errors_that_flower_reports(reason: str | None, readable: str) -> None:
    assert readable_reason(reason) == readable


def test_unknown_message_types_are_refused() -> None:
    with pytest.raises(MessageError, match="unknown message type"):
        handle("evaluate.measure", RecordDict(), Context(0, 1, {}, RecordDict(), {}))


def test_masks_cancel_in_the_sum_and_only_there() -> None:
    secrets = {worker: masks.new_secret() for worker in (0, 3, 7)}
    keys = {worker: masks.public_key(secret) for worker, secret in secrets.items()}
    counts = {worker: np.array([[worker, 2], [1, 1], [5, 0]]) for worker in secrets}

    peers: dict[int, dict[str, int]] = {worker: {} for worker in secrets}
    for one, other in itertools.combinations(secrets, 2):
        mine, yours = masks.keys_of_a_pair(keys[one], keys[other])
        peers[one][mine], peers[other][yours] = 1, -1
    assert not {key for known in peers.values() for key in known} & set(keys.values())

    def report(worker: int, purpose: str) -> Any:
        return masks.masked(counts[worker], secrets[worker], peers[worker], purpose)

    reports = {worker: report(worker, "round 1") for worker in secrets}
    assert masks.unmasked_sum(reports.values()).tolist() == [[10, 6], [3, 3], [15, 0]]
    for worker, sent in reports.items():
        assert not (sent == counts[worker]).any()
        assert not (sent == report(worker, "round 2")).any()  # no mask is used twice
    missing = masks.unmasked_sum([reports[0], reports[3]])
    assert not (missing == counts[0] + counts[3]).any()


def test_memory_continues_from_the_last_used_round() -> None:
    records = RecordDict()
    state = {number: {"v": {"w": torch.full((1, 2), float(number))}, "objective": {}} for number in (1, 2, 3)}

    def settled(used: int) -> Any:  # each message creates a new Memory on the same records
        return plain(Memory.within(records).load(used))

    assert settled(0) is None
    Memory.within(records).store(0, 1, state[1])
    assert settled(1) == plain(state[1])
    Memory.within(records).store(0, 2, state[2])  # arrives too late and is not used
    assert settled(1) == plain(state[1])
    Memory.within(records).store(0, 3, state[3])
    assert settled(3) == plain(state[3])
    assert settled(2) is None  # no longer stored
    assert settled(3) is None
    secret = Memory.within(records).secret
    assert Memory.within(records).secret == secret
    Memory.within(records).reset()
    assert Memory.within(records).secret != secret


def test_pooled_moments_by_hand() -> None:
    values = np.array([[1.0, 4.0], [2.0, 4.0], [6.0, 4.0]])
    infos = []
    for part in (values[:1], values[1:]):
        moments = {"mean": part.mean(0), "variance": part.var(0)}
        infos.append(
            NodeInfo(-1, (2,), len(part), "", {name: torch.as_tensor(value) for name, value in moments.items()})
        )
    mean, std = pooled_moments(infos)
    assert mean == pytest.approx((3.0, 4.0))
    assert std == pytest.approx((np.sqrt((4 + 1 + 9) / 3), 1.0))  # a constant channel is divided by 1


def test_flower_run_configuration() -> None:
    given_ = {"algorithm": "fedsat", "gamma": 0.5, "per-round": 2, "clients": 4, "out": "here", "config": ""}
    config, terms, out = read_run_config({**given_, "hidden": "[8, 4]", "min-fraction": 0.75, "test": ""})
    assert (config.method, config.per_round, config.model["hidden"]) == ("fedsat", 2, [8, 4])
    assert config.algorithm.gamma == 0.5  # type: ignore[attr-defined]
    assert terms == Terms(min_fraction=0.75)
    assert str(out) == "here"
    with pytest.raises(fedsat.UsageError, match="gama"):
        read_run_config({"gama": 1.0})
    with pytest.raises(fedsat.UsageError, match="min_fraction is 2; it must be at most 1"):
        read_run_config({"min-fraction": 2.0})


@pytest.mark.parametrize("settings", [{"partition": "ls"}, {"partition": "hsu", "imbalance": 5.0, "holdout": 0.2}])
def test_a_node_loads_the_samples_of_its_client(settings: dict[str, Any]) -> None:
    run = RunSpec({}, tuple("0123456789"), False)
    config = fedsat.configure(clients=5, per_round=2, **settings)
    whole = fedsat.data.Federation.build(config.load_dataset(), config.partition, 5, config.seed)
    share = load_share(run, config, {"partition-id": 3})
    federation = federation_of(share, 3, config, {})
    assert federation.sizes.tolist() == [0, 0, 0, whole.sizes[3], 0]
    assert federation.class_counts[3].tolist() == whole.class_counts[3].tolist()
    assert np.array_equal(share.train.images, whole.dataset.train.images[whole.indices(3)])
    assert (share.mean, share.std) == (whole.dataset.mean, whole.dataset.std)


@pytest.mark.parametrize(
    ("node", "why"),
    [
        ({}, "partition-id -1 is not between 0 and 3"),
        ({"partition-id": 4}, "partition-id 4 is not between 0 and 3"),
        ({"partition-id": "two"}, "must be an integer"),
        ({"folder": "/data"}, "its own folder; imbalance and holdout need a dataset that the run divides"),
        ({"partition-id": 1, "num-partitions": 9}, "num-partitions of the node is 9, but the run has 4 clients"),
        ({"partition-id": 1, "dataset": "mnist-mini"}, "differ from the 2 classes of the run"),
    ],
)
def test_wrong_node_configurations(node: dict[str, Any], why: str) -> None:
    with pytest.raises(fedsat.FedsatError, match=why):
        load_share(RunSpec({}, ("cat", "dog"), False), fedsat.configure(clients=4, per_round=2, imbalance=2), node)


def test_a_node_does_not_open_the_path_of_the_server() -> None:
    config = fedsat.configure(clients=4, per_round=2, dataset="/etc")
    with pytest.raises(fedsat.UsageError, match="set dataset or folder in the node's configuration"):
        load_share(RunSpec({}, ("cat",), False), config, {"partition-id": 1})
