"""Kernels written in Triton, which comes with torch's CUDA builds and is missing elsewhere."""

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
    """One of our modules of Triton kernels, where Triton is installed."""
    try:
        return importlib.import_module(f"fedsat.engine.kernels.{name}")
    except ImportError:
        return None


def without_second_derivative(backward: Callable[..., Slopes]) -> Callable[..., Slopes]:
    """A backward pass that cannot be differentiated itself, and says so.

    torch's `once_differentiable` says it in `Tensor.backward` only: `torch.autograd.grad` leaves the term out.
    """

    @wraps(backward)
    def checked(ctx: Any, *grads: Any) -> Slopes:
        if torch.is_grad_enabled():
            raise UsageError("our kernels on a GPU have no second derivatives; use --engine sequential")
        return backward(ctx, *grads)

    return checked
