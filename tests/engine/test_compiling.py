"""Kernels are compiled together before they are launched."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fedsat.engine import kernels


class Kernel:
    """Notes how it is called."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def warmup(self, *arguments: Any, grid: Any, **options: Any) -> None:
        self.calls.append(("compiled", grid, arguments, options))

    def __getitem__(self, grid: Any) -> Any:
        return lambda *arguments, **options: self.calls.append(("run", grid, arguments, options))


def test_kernels_are_only_compiled_also_in_the_backward_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    pools = []

    def mode(pool: ThreadPoolExecutor) -> Any:
        pools.append(pool)
        return nullcontext()

    monkeypatch.setitem(sys.modules, "triton", SimpleNamespace(AsyncCompileMode=mode))
    monkeypatch.setattr(kernels, "TRITON", True)
    kernel = Kernel()

    class Layer(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            kernels.launch(kernel, (1,), "forward", ROWS=2)
            return x.clone()

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            kernels.launch(kernel, (3,), "backward")
            return grad

    def work() -> None:
        Layer.apply(torch.ones(1, requires_grad=True)).backward()  # type: ignore[no-untyped-call]

    expected = [((1,), ("forward",), {"ROWS": 2}), ((3,), ("backward",), {})]
    kernels.compile_together(work)
    work()
    assert kernel.calls == [("compiled", *call) for call in expected] + [("run", *call) for call in expected]
    assert len(pools) == 1


def test_without_triton_nothing_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "TRITON", False)
    kernels.compile_together(lambda: pytest.fail("there is nothing to compile"))
