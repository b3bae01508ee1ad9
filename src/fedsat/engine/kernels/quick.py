"""Layers without weights that torch computes slowly, replaced when a module is folded (see `fold`)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


class QuickTanh(nn.Tanh):
    """tanh x = 2σ(2x) − 1, which torch computes four times as fast on a CPU; its error of 2·10⁻⁷ is float32's own."""

    def forward(self, input: Tensor) -> Tensor:
        """As torch's."""
        if input.is_cuda or input.dtype not in {torch.float32, torch.float64}:
            return super().forward(input)
        out: Tensor = _Tanh.apply(input)  # type: ignore[no-untyped-call]
        return out


class _Tanh(torch.autograd.Function):
    """Keeps only its output for the backward pass, as torch's tanh does."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        out = torch.mul(x, 2).sigmoid_().mul_(2).sub_(1)
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (out,) = ctx.saved_tensors
        return torch.ops.aten.tanh_backward(grad, out)  # type: ignore[no-any-return]


class QuickAvgPool2d(nn.AvgPool2d):
    """Average pooling; where windows do not overlap, its gradient on a GPU is the share of each pixel, written once."""

    def forward(self, input: Tensor) -> Tensor:
        """As torch's."""
        side = self.kernel_size
        plain = (self.stride, self.padding, self.ceil_mode, self.divisor_override) == (side, 0, False, None)
        if isinstance(side, int) and plain and input.is_cuda and input.dim() == 4:
            return disjoint_means(input, side)
        return super().forward(input)


def disjoint_means(x: Tensor, side: int) -> Tensor:
    """The means of windows side by side."""
    out: Tensor = _DisjointMeans.apply(x, side)  # type: ignore[no-untyped-call]
    return out


class _DisjointMeans(torch.autograd.Function):
    """torch's kernel for the gradient looks at every pixel for the windows that may have seen it, which takes several
    times as long as to write it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, side: int) -> Tensor:
        ctx.like, ctx.side = torch.empty_like(x, device="meta"), side
        return functional.avg_pool2d(x, side)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        side, (height, width) = ctx.side, ctx.like.shape[2:]
        if torch.is_grad_enabled():  # somebody wants second derivatives
            spread = grad.repeat_interleave(side, 2).repeat_interleave(side, 3) / side**2
            return functional.pad(spread, (0, width % side, 0, height % side)), None
        dx = torch.empty_like(ctx.like, device=grad.device)
        if height % side or width % side:
            dx.zero_()  # pixels beyond the last window
        windows = dx.unfold(2, side, side).unfold(3, side, side)
        torch.mul(grad[..., None, None].expand_as(windows), 1 / side**2, out=windows)
        return dx, None
