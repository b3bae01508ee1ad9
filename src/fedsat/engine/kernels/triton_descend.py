"""Plain descent on the weights of convolutions: the parts of their gradients are added where the weights are updated.

torch would add the parts, add the method's pull and add the gradient in three passes. Each of them reads and writes
the weights of all clients, or tensors as large.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from fedsat.engine.kernels import launch

BLOCK = 1024
"""Weights that a program handles."""


@triton.jit(do_not_specialize=["count", "lr"])
def _descend(
    weights,
    parts,
    pull,
    rate,
    lr,
    size,
    count,
    weights_client,
    parts_part,
    parts_client,
    pull_client,
    PULLED: tl.constexpr,
    RATED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """weights ← weights − η (Σ parts + pull) for a client; η is in memory if RATED."""
    client = tl.program_id(1)
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = place < size
    value = tl.load(weights + client * weights_client + place, mask=there, other=0.0)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for part in range(count):
        total += tl.load(parts + part * parts_part + client * parts_client + place, mask=there, other=0.0)
    if PULLED:
        total += tl.load(pull + client * pull_client + place, mask=there, other=0.0)
    if RATED:
        lr = tl.load(rate)
    tl.store(weights + client * weights_client + place, value - lr * total, mask=there)


def descend(weight: Tensor, parts: Tensor, pull: Tensor | None, lr: float | Tensor) -> None:
    """Apply θ ← θ − η (Σ parts + pull) in place to weights [S, O, C, k, k]; parts are [P, S, k, k, C, O]."""
    weights = weight.permute(0, 3, 4, 2, 1)
    pull = None if pull is None else _dense(pull.permute(0, 3, 4, 2, 1))
    size = weights[0].numel()
    rate, number = (lr, 0.0) if isinstance(lr, Tensor) else (None, lr)
    launch(
        _descend, (triton.cdiv(size, BLOCK), len(weights)),
        weights, parts, pull, rate, number, size, len(parts), weights.stride(0), *parts.stride()[:2],
        0 if pull is None else pull.stride(0), PULLED=pull is not None, RATED=rate is not None, BLOCK=BLOCK,
    )  # fmt: skip


def suits(weight: Tensor, parts: Tensor) -> bool:
    """Whether each client's weights [S, O, C, k, k] are in float32 and stored tap by tap, like the parts."""
    dense = weight.permute(0, 3, 4, 2, 1)[0].is_contiguous()
    return dense and weight.dtype == torch.float32 and parts.numel() < 2**31


def _dense(tensor: Tensor) -> Tensor:
    """Return the tensor with each client's values contiguous."""
    return tensor if tensor[0].is_contiguous() else tensor.contiguous()
