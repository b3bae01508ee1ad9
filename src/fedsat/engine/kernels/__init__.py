"""Triton kernels. Triton comes with torch's CUDA builds and may be missing elsewhere."""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from functools import cache, wraps
from types import ModuleType
from typing import Any, TypeVar

import torch

from fedsat.errors import UsageError

Slopes = TypeVar("Slopes")


@cache
def triton_module(name: str) -> ModuleType | None:
    """Return a module of this package, or None if Triton is not installed."""
    try:
        return importlib.import_module(f"fedsat.engine.kernels.{name}")
    except ImportError:
        return None


TRITON = importlib.util.find_spec("triton") is not None

_only_compiling = ContextVar("only_compiling", default=False)


def launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, **options: Any) -> None:
    """Start a Triton kernel, or only compile it (see `compile_together`)."""
    if _only_compiling.get():
        kernel.warmup(*arguments, grid=grid, **options)
    else:
        kernel[grid](*arguments, **options)


def compile_together(work: Callable[[], object]) -> None:
    """Compile the kernels that `work` launches, several at a time, without running them.

    Its results are meaningless, because the kernels' outputs are uninitialised. Older versions of Triton compile each
    kernel when it is launched.
    """
    parallel = getattr(importlib.import_module("triton"), "AsyncCompileMode", None) if TRITON else None
    if parallel is None:
        return
    token = _only_compiling.set(True)
    try:
        # In a thread of its own, the backward pass would not know about this.
        with (
            ThreadPoolExecutor(os.cpu_count()) as threads,
            parallel(threads),
            torch.autograd.set_multithreading_enabled(False),
        ):
            work()
    finally:
        _only_compiling.reset(token)


@cache
def multiprocessors(device: torch.device) -> int:
    """Return the number of the GPU's multiprocessors; with fewer programs, some of them have nothing to do."""
    return torch.cuda.get_device_properties(device).multi_processor_count


def without_second_derivative(backward: Callable[..., Slopes]) -> Callable[..., Slopes]:
    """Make a backward pass raise an error when it is differentiated itself.

    torch's `once_differentiable` does so only in `Tensor.backward`; `torch.autograd.grad` silently omits the term.
    """

    @wraps(backward)
    def checked(ctx: Any, *grads: Any) -> Slopes:
        if torch.is_grad_enabled():
            raise UsageError("the GPU kernels have no second derivatives; use --engine sequential")
        return backward(ctx, *grads)

    return checked
