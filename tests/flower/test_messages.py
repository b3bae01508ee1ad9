"""Messages survive the wire, and what is not one of them is refused; the parts of which they are made, by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fedsat
from fedsat.algorithms import Model

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedsat[flower]'")

from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto

from fedsat.flower import masks
from fedsat.flower.memory import Memory
from fedsat.flower.messages import (
    Card,
    Evaluate,
    Evaluated,
    Hello,
    Measure,
    Measured,
    RunSpec,
    Train,
    Trained,
)
from fedsat.flower.node_data import federation_of, load_share
from fedsat.flower.records import Message, MessageError, size
from fedsat.flower.server import pooled_moments, read_run_config
from fedsat.flower.terms import Terms

RUN = RunSpec({"lr": 0.1, "algorithm": {"name": "fedavg"}}, ("cat", "dog"), False, (0.1 + 0.2,), (1 / 3,))
MODEL = Model({"w": torch.randn(2, 3), "b": torch.zeros(3)}, {"seen": torch.tensor(7)})
STATE = {"direction": {"w": torch.ones(2, 3)}}
COUNTS = torch.tensor([[3, 1], [2, 1], [2, 2]])
MESSAGES: list[Message] = [
    Hello(RUN),
    Card(3, (1, 28, 28), "ab12", {"samples": torch.tensor(5), "mean": torch.zeros(1)}),
    Train(RUN, 2, 5, 3, MODEL, STATE, True),
    Trained(MODEL, STATE, 10, 20, 3.5, False, {"counts": COUNTS}),
    Measure(RUN, 1, {0: MODEL, 4: MODEL}, "nonce", {0: {1: "aa", 2: "bb"}}),
    Measured({"0": COUNTS, "4": COUNTS}),
    Evaluate(RUN, 1, "held-out", [MODEL] * 11),
    Evaluate(RUN, 1, "expected", [], {"recalls": torch.tensor([[0.5, torch.nan]])}),
    Evaluated({"accuracy": torch.tensor([0.25])}),
]


def plain(value: Any) -> Any:
    """A message as plain values that can be compared."""
    if isinstance(value, torch.Tensor):
        return (str(value.dtype), value.nan_to_num(-1).tolist())
    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items()}
    if isinstance(value, list):
        return [plain(part) for part in value]
    return plain(vars(value)) if hasattr(value, "__dataclass_fields__") else value


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.name)
def test_messages_survive_the_wire(message: Message) -> None:
    sent = recorddict_from_proto(recorddict_to_proto(message.pack()))
    assert plain(type(message).unpack(sent)) == plain(message)
    assert size(sent) == size(message.pack()) > 0


def test_trees_that_messages_share_are_packed_once() -> None:
    packed: dict[int, ArrayRecord] = {}
    first, second = (Train(RUN, client, 1, 0, MODEL, {}, False).pack(packed) for client in (0, 1))
    assert first["model:params"] is second["model:params"]


def test_other_versions_and_other_messages_are_refused() -> None:
    records = Hello(RUN).pack()
    with pytest.raises(MessageError, match="not the message 'card'"):
        Card.unpack(records)
    records.config_records["fedsat"]["version"] = 99
    with pytest.raises(MessageError, match="version 99 of the messages; this side speaks version 1"):
        Hello.unpack(records)
    with pytest.raises(MessageError, match="not the message"):
        Hello.unpack(RecordDict())


scalars = st.one_of(
    st.integers(-(2**60), 2**60), st.floats(), st.booleans(), st.text(max_size=8), st.binary(max_size=8)
)


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_broken_messages_are_refused_and_never_more(data: st.DataObject) -> None:
    """Any part of any message replaced by anything: read as a message, or refused by a `MessageError`."""
    message = data.draw(st.sampled_from(MESSAGES))
    records = message.pack()
    name = data.draw(st.sampled_from(sorted(records)))
    record = records[name]
    if isinstance(record, ArrayRecord):
        key = data.draw(st.sampled_from(sorted(record)))
        junk = data.draw(st.binary(max_size=200))
        record[key] = Array("float32", (2,), "numpy.ndarray", junk)
    elif isinstance(record, ConfigRecord):
        key = data.draw(st.sampled_from(sorted(set(record) - {"version", "message"}) or ["extra"]))
        record[key] = data.draw(scalars)
    else:
        assert isinstance(record, MetricRecord)
        record[data.draw(st.sampled_from(sorted(record)))] = data.draw(st.integers(-5, 5) | st.floats())
    try:
        read = type(message).unpack(records)
    except MessageError:
        return
    assert isinstance(read, type(message))


def test_masks_cancel_in_the_sum_and_only_there() -> None:
    secrets = {worker: masks.new_secret() for worker in (0, 3, 7)}
    keys = {worker: masks.public_key(secret) for worker, secret in secrets.items()}
    counts = {worker: np.array([[worker, 2], [1, 1], [5, 0]]) for worker in secrets}

    def report(worker: int, purpose: str) -> Any:
        peers = {other: key for other, key in keys.items() if other != worker}
        return masks.masked(counts[worker], worker, secrets[worker], peers, purpose)

    reports = {worker: report(worker, "round 1") for worker in secrets}
    assert masks.unmasked_sum(reports.values()).tolist() == [[10, 6], [3, 3], [15, 0]]
    for worker, sent in reports.items():
        assert not (sent == counts[worker]).any()
        assert not (sent == report(worker, "round 2")).any()  # masks never serve twice
    missing = masks.unmasked_sum([reports[0], reports[3]])
    assert not (missing == counts[0] + counts[3]).any()


def test_memory_goes_on_from_the_round_that_was_used() -> None:
    records = RecordDict()
    state = {number: {"v": {"w": torch.full((1, 2), float(number))}, "objective": {}} for number in (1, 2, 3)}

    def settled(used: int) -> Any:  # every message finds the memory as the last one left it
        return plain(Memory(records).settle(used))

    assert settled(0) is None
    Memory(records).keep(1, state[1])
    assert settled(1) == plain(state[1])
    Memory(records).keep(2, state[2])  # comes too late, is not used
    assert settled(1) == plain(state[1])
    Memory(records).keep(3, state[3])
    assert settled(3) == plain(state[3])
    assert settled(2) is None  # it is not there any more
    assert settled(3) is None
    secret = Memory(records).secret
    assert Memory(records).secret == secret
    Memory(records).forget()
    assert Memory(records).secret != secret


def test_pooled_moments_by_hand() -> None:
    values = np.array([[1.0, 4.0], [2.0, 4.0], [6.0, 4.0]])
    cards = []
    for part in (values[:1], values[1:]):
        moments = {"samples": len(part), "mean": part.mean(0), "variance": part.var(0)}
        cards.append(Card(-1, (2,), "", {name: torch.as_tensor(value) for name, value in moments.items()}))
    mean, std = pooled_moments(cards)
    assert mean == pytest.approx((3.0, 4.0))
    assert std == pytest.approx((np.sqrt((4 + 1 + 9) / 3), 1.0))  # a constant channel is divided by 1


def test_the_run_configuration_of_flower() -> None:
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


def test_a_node_knows_which_client_it_is() -> None:
    run = RunSpec({}, tuple("0123456789"), False)
    config = fedsat.configure(clients=5, per_round=2, partition="ls")
    whole = fedsat.data.Federation.build(fedsat.data.load("mnist-mini"), config.partition, 5, config.seed)
    share = load_share(run, config, {"partition-id": 3})
    federation = federation_of(share, 3, 5)
    assert federation.sizes.tolist() == [0, 0, 0, whole.sizes[3], 0]
    assert federation.class_counts[3].tolist() == whole.class_counts[3].tolist()
    assert np.array_equal(share.train.images, whole.dataset.train.images[whole.indices(3)])
    assert (share.mean, share.std) == (whole.dataset.mean, whole.dataset.std)


@pytest.mark.parametrize(
    ("node", "why"),
    [
        ({}, "partition-id -1 is not one of 4 clients"),
        ({"partition-id": 4}, "partition-id 4 is not one of 4 clients"),
        ({"partition-id": "two"}, "must be a whole number"),
        ({"partition-id": 1, "num-partitions": 9}, "expects 9 partitions; the run has 4"),
        ({"partition-id": 1, "dataset": "mnist-mini"}, "not the run's 2"),
    ],
)
def test_node_configurations_that_cannot_be_meant(node: dict[str, Any], why: str) -> None:
    with pytest.raises(fedsat.FedsatError, match=why):
        load_share(RunSpec({}, ("cat", "dog"), False), fedsat.configure(clients=4, per_round=2), node)


def test_a_node_without_a_folder_does_not_take_the_servers() -> None:
    config = fedsat.configure(clients=4, per_round=2, dataset="/etc")
    with pytest.raises(fedsat.UsageError, match="the node's configuration must name its own"):
        load_share(RunSpec({}, ("cat",), False), config, {"partition-id": 1})
