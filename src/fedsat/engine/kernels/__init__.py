"""Triton kernels. Triton comes with torch's CUDA builds and may be missing elsewhere."""

from __future__ import annotations

import importlib
from collections.abc import Callable
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
