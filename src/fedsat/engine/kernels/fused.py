"""Convolutions in evaluation mode with what follows them: a bias, the sum with a shortcut, and ReLU."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from fedsat.engine.kernels import triton_module

CUDNN = False
"""Whether cuDNN's kernel computes convolutions with a shortcut and ReLU; otherwise Triton computes all.

Without a shortcut, torch gives cuDNN uninitialised memory as one, times zero, which may be NaN.
`benchmarks/fused.py` times both.
"""


def convolution(
    x: Tensor, weight: Tensor, bias: Tensor, shortcut: Tensor | None, relu: bool, stride: int, padding: int
) -> Tensor:
    """Return relu(x ∗ W + b + shortcut), with the shortcut and ReLU optional, for weights [O, I, k, k]."""
    if shortcut is not None:  # a module may add one value per channel
        shortcut = shortcut.expand(out_shape(x, weight, stride, padding))
        shortcut = shortcut.contiguous(memory_format=torch.channels_last)
    # Both tensors are indexed with 32 bits; the output has fewer pixels.
    suited = x.is_cuda and len(x) * x[0, 0].numel() * max(weight.shape[:2]) < 2**31
    if suited and shortcut is not None and relu and CUDNN:
        return by_cudnn(x, weight, bias, shortcut, stride, padding)
    if suited and triton_module("triton_conv"):
        return by_triton(x, weight, bias, shortcut, relu, stride, padding)
    return separately(x, weight, bias, shortcut, relu, stride, padding)


def out_shape(x: Tensor, weight: Tensor, stride: int, padding: int) -> tuple[int, int, int, int]:
    """Return the shape of the output, [B, O, H′, W′]."""
    height, width = ((side + 2 * padding - weight.shape[2]) // stride + 1 for side in x.shape[2:])
    return len(x), len(weight), height, width


def separately(
    x: Tensor, weight: Tensor, bias: Tensor, shortcut: Tensor | None, relu: bool, stride: int, padding: int
) -> Tensor:
    """Compute `convolution` operation by operation."""
    out = functional.conv2d(x, weight, bias.to(x.dtype), stride, padding)
    out = out if shortcut is None else out + shortcut
    return functional.relu(out) if relu else out


def by_triton(
    x: Tensor, weight: Tensor, bias: Tensor, shortcut: Tensor | None, relu: bool, stride: int, padding: int
) -> Tensor:
    """Compute `convolution` by the kernel that also trains, for a single client."""
    kernels = triton_module("triton_conv")
    assert kernels is not None
    out = torch.empty(
        out_shape(x, weight, stride, padding), dtype=x.dtype, device=x.device, memory_format=torch.channels_last
    )
    taps = weight.permute(2, 3, 1, 0).unsqueeze(0)
    kernels.gather_product(x, taps, out, stride, padding, bias=bias, shortcut=shortcut, relu=relu)
    return out


def by_cudnn(x: Tensor, weight: Tensor, bias: Tensor, shortcut: Tensor, stride: int, padding: int) -> Tensor:
    """Compute `convolution` with a shortcut and ReLU by cuDNN's kernel for it."""
    sizes = [stride] * 2, [padding] * 2, [1, 1], 1
    cudnn = torch.backends.cudnn
    # Timing all of cuDNN's kernels for this operation would compile each of them.
    with cudnn.flags(enabled=True, benchmark=False, deterministic=False, allow_tf32=cudnn.allow_tf32):
        return torch.cudnn_convolution_add_relu(x, weight, shortcut, 1.0, bias.to(x.dtype), *sizes)
