"""Several devices compute the same as one. The devices of these tests are processes on the CPU."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

import fedsat
from fedsat.engine import Peer, SharedEngine
from fedsat.engine.shared import packed, result_of, shared_out, unpacked
from fedsat.errors import FedsatError, UsageError
from fedsat.experiment.environment import pick_devices
from tests.support.federations import furthest

CPU = torch.device("cpu")
SMALL: dict[str, Any] = {
    "clients": 12,
    "per_round": 5,
    "workers": 3,
    "rounds": 3,
    "epochs": 1,
    "precision": "float64",
    "partition": {"name": "ls", "beta": 0.3},
}


@pytest.mark.parametrize(
    ("work", "devices", "parts"),
    [
        ([5, 1, 4, 2], 2, [[0, 1], [2, 3]]),  # 5 | 4 | 4 + 2 | 5 + 1
        ([1, 1, 1], 2, [[0, 2], [1]]),
        ([7], 3, [[0]]),
        ([0, 0], 2, [[0, 1]]),
    ],
)
def test_shared_out_by_hand(work: list[int], devices: int, parts: list[list[int]]) -> None:
    assert shared_out(work, devices) == parts


def test_tensors_survive_the_way_to_another_process() -> None:
    whole = torch.arange(6.0, dtype=torch.float64).view(2, 3)
    sent = {"row": whole[1], "wide": whole[:1].expand(4, 3), "number": torch.tensor(3), "text": "x"}
    got = unpacked(packed(sent), CPU)
    assert got["text"] == "x"
    for name in ("row", "wide", "number"):
        torch.testing.assert_close(got[name], sent[name], rtol=0, atol=0)
    assert len(packed(torch.zeros(1000)[:1])) < 1000  # a view takes no more than its own values


def test_tensors_of_a_gpu_come_to_the_receiver_s_device() -> None:
    """Tensors that were on some GPU are unpacked on the device of the process that asked, the others on the CPU."""
    on_gpu = pickled_as_on_gpu(torch.ones(2))
    assert unpacked(on_gpu, torch.device("meta")).device.type == "meta"
    assert unpacked(packed(torch.ones(2)), torch.device("meta")).device.type == "cpu"


def pickled_as_on_gpu(tensor: torch.Tensor) -> bytes:
    class Pickler(pickle.Pickler):
        def persistent_id(self, value: Any) -> Any:
            return (value.numpy(), True) if isinstance(value, torch.Tensor) else None

    buffer = io.BytesIO()
    Pickler(buffer, protocol=5).dump(tensor)
    return buffer.getvalue()


def assert_same(shared: fedsat.Run, alone: fedsat.Run) -> None:
    assert isinstance(shared.setup.engine, SharedEngine)
    assert furthest(shared.model.params, alone.model.params) < 1e-9
    for line, other in zip(shared.records, alone.records, strict=True):
        assert line.clients == other.clients
        assert line.weights == pytest.approx(other.weights, abs=1e-9)
        assert line.metrics["loss"] == pytest.approx(other.metrics["loss"], abs=1e-9)


def test_two_devices_equal_one() -> None:
    settings = {**SMALL, "algorithm": "fedsat"}
    assert_same(fedsat.run(**settings, device="cpu,cpu"), fedsat.run(**settings, device="cpu"))


def test_states_of_clients_also_after_a_resume_on_two_devices(tmp_path: Path) -> None:
    settings = {**SMALL, "algorithm": "scaffold", "engine": "sequential"}
    run = fedsat.prepare(fedsat.configure(**settings, device="cpu,cpu"), tmp_path / "run")
    run.run_round()
    run.save_checkpoint()
    del run
    assert_same(fedsat.resume(tmp_path / "run"), fedsat.run(**settings, device="cpu"))


def unable() -> Any:
    raise UsageError("no such network")


def wordless() -> Any:
    return type("Wordless", (), {"device": CPU, "train": lambda self: 1 / 0})()


def test_errors_of_another_process_are_raised_here() -> None:
    with pytest.raises(UsageError, match="no such network"):
        result_of(Peer(unable, "cpu", 1).receive(CPU))
    peer = Peer(wordless, "cpu", 1)
    assert peer.receive(CPU) is None
    peer.send(("evaluate", ()))  # nobody waits for this reply
    peer.send(("train", ()))
    with pytest.raises(FedsatError, match="ZeroDivisionError"):
        result_of(peer.receive(CPU))
    peer._process.kill()
    with pytest.raises(FedsatError, match="the process of cpu was killed"):
        peer.receive(CPU)


@pytest.mark.parametrize("names", ["cpu,cuda:99", "cpu,meta", ""])
def test_devices_that_do_not_exist(names: str) -> None:
    with pytest.raises(UsageError, match="device is"):
        pick_devices(names)


def test_lists_of_devices() -> None:
    assert pick_devices("cpu, cpu") == [CPU, CPU]
    if not torch.cuda.is_available():
        with pytest.raises(UsageError, match="torch finds 0 CUDA devices"):
            pick_devices("cuda:all")
