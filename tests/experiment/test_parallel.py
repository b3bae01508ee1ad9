"""The processes of `jobs` take the GPUs in turn."""

from __future__ import annotations

import multiprocessing
import os

import pytest
import torch

from fedsat.experiment import parallel


@pytest.mark.parametrize(
    ("count", "visible", "devices", "gpus"),
    [
        (4, None, ["auto", "cuda"], ["0", "1", "2", "3"]),
        (2, "5,7", ["cuda:all"], ["5", "7"]),
        (2, None, ["auto", "cuda:1"], []),  # a run names its GPU
        (2, None, ["cpu"], []),
        (1, None, ["auto"], []),
        (0, "", ["auto"], []),
    ],
)
def test_gpus_that_processes_share(
    count: int, visible: str | None, devices: list[str], gpus: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert parallel.gpus_to_share(devices) == gpus


def test_processes_take_gpus_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "_follow_the_parent", lambda: None)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,4")
    started, seen = multiprocessing.get_context("spawn").Value("i", 0), []
    for _ in range(3):
        parallel._begin(started, ["3", "4"])
        seen.append(os.environ["CUDA_VISIBLE_DEVICES"])
    assert seen == ["3", "4", "3"]
    parallel._begin(started, [])
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "3"
