"""Ten thousand broken messages: each is used or refused with a reason, quickly and with little memory."""

from __future__ import annotations

import gc
import random
import tracemalloc
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedsat.algorithms import Model
from fedsat.experiment.config import complete
from fedsat.models import build_model
from tests.support.federations import tiny_dataset
from tests.support.mutations import EFFORT, within

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedsat[flower]'")

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, MetricRecord, RecordDict

from fedsat.flower import checks, masks
from fedsat.flower.checks import RefusedError
from fedsat.flower.client import HANDLERS, answer
from fedsat.flower.evaluation_messages import Evaluate, Evaluated, EvaluateWorker, WorkerCounts
from fedsat.flower.exchange import Exchange
from fedsat.flower.in_process import InProcessNodes
from fedsat.flower.members import Members
from fedsat.flower.messages import Hello, NodeInfo, Refused, Train, Trained
from fedsat.flower.records import LONGEST_TEXT, Message, MessageError, size
from fedsat.flower.run_spec import RunSpec
from fedsat.flower.secure_messages import Introduce, Introduced, Reveal, Revealed, Share, Shared
from fedsat.flower.secure_round import check_masked, sized
from fedsat.flower.worker_round import Workers
from fedsat.rounds.secure import SEALED
from fedsat.secure.protocol import Party, SecureError
from fedsat.secure.shares import SIZE
from tests.support.faulty_nodes import LENIENT

REPLIES, REQUESTS = 9_000, 1_000
"""Broken messages to the server, and to a node, which takes longer because it may do what is asked."""

SLACK = 2**20
"""Bytes that reading a message may take besides a few times its size."""

CLASSES = ("a", "b", "c")
SETTINGS: dict[str, Any] = complete(
    {
        "algorithm": "scaffold",
        "clients": 4,
        "per_round": 4,
        "partition": "iid",
        "model": {"name": "mlp", "hidden": [4]},
        "batch_size": 8,
        "epochs": 1,
        "client_accuracy": "test-split",
    }
)
RUN = RunSpec(SETTINGS, CLASSES, True, (0.0,) * 6, (1.0,) * 6, 30.0)
SECURE_RUN = RunSpec({**SETTINGS, "algorithm": "fedavg", "secure_aggregation": True}, CLASSES, False)
WEIGHTS = build_model(SETTINGS["model"], (6,), 3, 0)
MODEL = Model({name: tensor.detach() for name, tensor in WEIGHTS.named_parameters()}, {})
STATE = {"control": {name: torch.zeros_like(tensor) for name, tensor in MODEL.params.items()}}
COUNTS = torch.tensor([[10, 10, 10], [5, 5, 5]])
LABELS = torch.tensor([10, 10, 10])
MOMENTS = {"mean": torch.zeros(6).double(), "variance": torch.ones(6).double()}
KEY = masks.public_key(masks.new_secret())


def use_info(info: NodeInfo) -> None:
    checks.check_info(info, RUN, clients=4)
    checks.check_same(info, INFO)


def use_trained(reply: Trained) -> None:
    checks.check_update(reply, MODEL, STATE, samples=30, steps=4)


def use_counts(reply: WorkerCounts) -> None:
    members = Members(Exchange(InProcessNodes(), 1.0), Hello(RUN), 4, infos={1: INFO})
    Workers(members, RUN)._checked({1: {"a1": 2}}, 1, reply)


def use_evaluated(reply: Evaluated) -> None:
    checks.check_accuracies(reply.results.get("accuracy"), 1)
    checks.check_confusion(reply.results.get("confusion"), 1, 3, 30)
    checks.check_losses(reply.results.get("loss"), 1)


def use_refused(reply: Refused) -> None:
    for text in (reply.error, reply.why):
        assert len(text) <= LONGEST_TEXT
        assert text.isprintable()


def use_masked(reply: Trained) -> None:
    check_masked(reply, 6, 30, 4)


def use_keys(reply: Introduced) -> None:
    party = Party(1, b"fuzz")
    with suppress(SecureError):
        party.share({1: party.introduce(), 2: reply.keys, 3: KEYS})


def use_shares(reply: Shared | Revealed) -> None:
    parts, size_ = (reply.sealed, SEALED) if isinstance(reply, Shared) else (reply.shares, SIZE)
    sized(parts, [1, 2, 3], size_)


KEYS = Party(3, b"fuzz").introduce()
INFO = NodeInfo(1, (6,), 30, KEY, MOMENTS, {"class_counts": LABELS}, 0, 30, 30)
ANSWERS: list[tuple[Message, Callable[[Any], None]]] = [
    (INFO, use_info),
    (Trained(MODEL, STATE, 4, 30, 3.5, False, {"counts": COUNTS, "labels": LABELS}), use_trained),
    (WorkerCounts({"a1": COUNTS}, {"labels": LABELS}), use_counts),
    (
        Evaluated(
            {
                "accuracy": torch.tensor([0.5]).double(),
                "confusion": torch.full((1, 3, 3), 3),
                "loss": torch.ones(1).double(),
            }
        ),
        use_evaluated,
    ),
    (Refused("DataError", "no"), use_refused),
    (Introduced(KEYS, 0), use_keys),
    (Shared({2: b"x" * SEALED, 3: b"y" * SEALED}), use_shares),
    (Trained(Model({}, {}), {}, 4, 30, 0.0, False, masked={"words": torch.arange(6)}), use_masked),
    (Revealed({2: b"x" * SIZE, 3: b"y" * SIZE}), use_shares),
]
QUESTIONS: list[Message] = [
    Hello(RUN),
    Train(RUN, 1, 1, 0, MODEL, STATE, True),
    EvaluateWorker(RUN, 1, {"a1": MODEL}, "nonce", True, {"a1": {KEY: 1}}),
    Evaluate(RUN, 1, "held-out", [MODEL]),
    Evaluate(RUN, 1, "expected", [], {"recalls": torch.rand(1, 3).double()}),
    Introduce(SECURE_RUN, 1, 1, "nonce"),
    *(OUT_OF_ORDER := [Share(SECURE_RUN, 1, {1: KEYS, 2: KEYS, 3: KEYS}), Reveal(SECURE_RUN, 1, (1, 2, 3))]),
]

JUNK: list[Any] = [
    *(0, -1, 2**31, 2**63 - 1, -(2**63), 10**15),
    *(0.0, -0.5, 1e300, float("nan"), float("inf")),
    *(True, False, b"", b"\x00" * 99, b"PK\x03\x04" + bytes(40)),
    *("", "x", "\x1b[31m\u202e\0", "é" * 1000, "[" * 50_000, '{"a":' * 20_000, "[1e999]", "9" * 5000, "null"),
    *([], [1], [2**62, 2**62], [1.5], [-1], ["a", ""], [1] * 5000, [True], [b"x"]),
]
HEADERS = [
    "(%d,)",
    "(-1,)",
    "(1e999,)",
    "(%d, %d)",
    "()",
    "(" + "1, " * 40 + ")",
]


def broken_array(rng: random.Random, content: bytes) -> bytes:
    """Change the bytes of an array."""
    kind, place = rng.randrange(7), rng.randrange(len(content) + 1)
    if kind == 0:
        return content[:place]
    if kind == 1:
        return content[:place] + rng.randbytes(rng.randint(1, 9)) + content[place:]
    if kind == 2:
        return content[:place] + rng.randbytes(rng.randint(1, 9)) + content[place + 4 :]
    if kind == 3:
        return content * rng.randint(2, 20)
    if kind == 4:
        return rng.choice([b"", b"PK\x03\x04" + bytes(99), b"\x80\x04K\x01.", b"\x93NUMPY", rng.randbytes(80)])
    if kind == 5:
        shape = rng.choice(HEADERS).replace("%d", str(rng.choice([0, 1, 6, 10**11, 2**62])))
        dtype = rng.choice(["<f4", "<f8", "<i8", "|b1", "|O", ">f4", "<f16", "<c8"])
        text = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
        return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + bytes(rng.choice([0, 4, 48]))
    values = np.array(rng.choice([[1e30], [-5], [2**60], [float("nan")], []]))
    return bytes(Array(np.resize(values, rng.choice([(6,), (3, 3), (2, 3), (1,), ()]))).data)


def broken(rng: random.Random, message: Message) -> RecordDict:
    """Return a message with one to three changes of its records, their entries, and the bytes of arrays."""
    records = message.pack()
    for _ in range(rng.randint(1, 3)):
        name = rng.choice(sorted(records))
        record, kind = records[name], rng.randrange(8)
        if kind == 0 and len(records) > 1:
            del records[name]
        elif kind == 1:
            records[rng.choice(["more", "uploads/", "\x1b" * 500, name + "x"])] = record
        elif kind == 2:
            del records[name]
            records[name] = rng.choice([ConfigRecord({"a": 1}), MetricRecord({"a": 1}), ArrayRecord({})])
        elif isinstance(record, ArrayRecord):
            arrays = dict(record)  # trees may be shared by messages
            if arrays:
                key = rng.choice(sorted(arrays))
                array = arrays.pop(key)
                data = broken_array(rng, bytes(array.data))
                name_of = rng.choice([key, key, key, "\x1b]0;" + "n" * 9999, ""])
                arrays[name_of] = Array(array.dtype, array.shape, array.stype, data)
            records[name] = ArrayRecord(arrays)
        elif isinstance(record, MetricRecord):
            number = rng.choice([value for value in JUNK if type(value) in (int, float)])
            record[rng.choice([*sorted(record), "extra"])] = number
        else:
            record[rng.choice([*sorted(record), "extra"])] = rng.choice(JUNK)
    return records


def measured(cases: Iterable[tuple[RecordDict, Callable[[], None]]], each: float = float("inf")) -> None:
    """Use all cases. None keeps memory, and each takes at most `each` times the message's size besides `SLACK`."""
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for records, use in cases:
            tracemalloc.reset_peak()
            held = tracemalloc.get_traced_memory()[0]
            use()
            peak = tracemalloc.get_traced_memory()[1] - held
            assert peak <= each * size(records) + SLACK, f"{peak:,} bytes for a message of {size(records):,}"
            del records, use
        gc.collect()
        kept = tracemalloc.get_traced_memory()[0] - before
        assert kept < SLACK, f"{kept:,} bytes are kept"
    finally:
        tracemalloc.stop()


def test_the_server_reads_or_refuses_any_reply() -> None:
    outcomes = {"used": 0, "refused": 0}

    def case(seed: int) -> tuple[RecordDict, Callable[[], None]]:
        rng = random.Random(seed)
        message, check = rng.choice(ANSWERS)
        records = broken(rng, message)

        def use() -> None:
            try:
                check(type(message).unpack(records, 2**20))
                outcomes["used"] += 1
            except (MessageError, RefusedError) as refusal:
                outcomes["refused" if str(refusal) else "without a reason"] += 1

        return records, use

    with within(60):
        measured(map(case, range(REPLIES // 10)), each=8)
        for seed in range(REPLIES // 10, REPLIES * max(1, EFFORT)):
            case(seed)[1]()
    assert min(outcomes.values()) > REPLIES / 100  # neither is everything refused, nor are changes without effect


@pytest.fixture
def node(tmp_path: Path) -> Context:
    data = tiny_dataset(30).train
    np.save(tmp_path / "images.npy", data.images)
    np.save(tmp_path / "labels.npy", data.labels)
    return Context(0, 1, {"folder": str(tmp_path), "partition-id": 1, "agreement": str(LENIENT)}, RecordDict(), {})


def test_a_node_does_or_refuses_any_request(node: Context, caplog: pytest.LogCaptureFixture) -> None:
    outcomes = {"done": 0, "refused": 0}
    caplog.set_level("CRITICAL", "flwr")
    for message in QUESTIONS:  # what is not broken is done
        refused = Refused.sent_in(answer(message.kind, message.pack(), node))
        assert refused == (message in OUT_OF_ORDER), message

    def case(seed: int) -> tuple[RecordDict, Callable[[], None]]:
        rng = random.Random(seed)
        message = rng.choice(QUESTIONS)
        records, kind = broken(rng, message), rng.choice([message.kind] * 9 + list(HANDLERS))

        def use() -> None:
            reply = answer(kind, records, node)
            if Refused.sent_in(reply):
                use_refused(Refused.unpack(reply))
            outcomes["refused" if Refused.sent_in(reply) else "done"] += 1

        return records, use

    with within(60):
        for seed in range(REQUESTS // 2, REQUESTS * max(1, EFFORT)):
            case(seed)[1]()
        measured(map(case, range(REQUESTS // 2)))
    assert min(outcomes.values()) > REQUESTS / 100
