"""Normalisation layers for many clients at once (see `fold`)."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedsat.engine.kernels import triton_module
from fedsat.engine.network import Aside
from fedsat.errors import UsageError
from fedsat.models.norms import GroupNormRelu, rectified


class FoldedGroupNorm(nn.GroupNorm):
    """GroupNorm with S times the groups."""

    def forward(self, input: Tensor) -> Tensor:
        """Normalise each group of each client."""
        clients = input.shape[1] // self.num_channels
        weight, bias = (None, None) if self.weight is None else (self.weight.flatten(), self.bias.flatten())
        return functional.group_norm(input, clients * self.num_groups, weight, bias, self.eps)


class FoldedGroupNormRelu(GroupNormRelu, FoldedGroupNorm):
    """`FoldedGroupNorm` followed by the optional shortcut and ReLU."""


class FoldedBatchNorm(nn.modules.batchnorm._BatchNorm):
    """BatchNorm with S times the channels that excludes padding from its statistics."""

    aside: Aside
    order: torch.memory_format
    """Memory format of the outputs."""

    def _check_input_dim(self, input: Tensor) -> None:
        del input

    def forward(self, input: Tensor) -> Tensor:
        """Normalise each channel of each client."""
        fused = self._fused(input, None, relu=False)
        return self._normalised(input) if fused is None else fused

    def _fused(self, x: Tensor, shortcut: Tensor | None, *, relu: bool) -> Tensor | None:
        """Return relu(norm(x) + shortcut) computed by the Triton kernels, or None if they do not apply."""
        kernels = triton_module("triton_norm") if x.is_cuda and self.order == torch.channels_last else None
        owned = (self.weight, self.bias, self.running_mean, self.running_var, self.num_batches_tracked)
        if kernels is None or x.dim() != 4 or x.dtype not in {torch.bfloat16, torch.float32}:
            return None
        if not 0 < x.numel() < 2**31 or any(tensor is None or not tensor.is_contiguous() for tensor in owned):
            return None
        if shortcut is not None and (shortcut.shape, shortcut.dtype) != (x.shape, x.dtype):
            return None
        weight, bias, *running = owned
        if self.training:
            real = None if self.aside.real is None else self._mask(self.aside.real, x).contiguous()
            moving = tuple(running), self.momentum or 0.0, self.eps
            return cast("Tensor", kernels.StackedNorm.apply(x, weight, bias, shortcut, relu, real, *moving))
        if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (x, shortcut, weight, bias)):
            return None
        return cast("Tensor", kernels.normalise(x, weight, bias, shortcut, relu, tuple(running[:2]), self.eps))

    def _mask(self, real: Tensor, x: Tensor) -> Tensor:
        """Return the padding mask if it matches the input."""
        if real.shape[1] != len(x):
            raise UsageError(
                f"a batch of {real.shape[1]} samples has size {len(x)} at a BatchNorm layer, which then cannot ignore "
                "padding; use --engine sequential"
            )
        return real

    def _normalised(self, input: Tensor) -> Tensor:
        """Normalise as torch does, but a single value per channel by running statistics, as in `CarefulBatchNorm`."""
        weight, bias = (None, None) if self.weight is None else (self.weight.flatten(), self.bias.flatten())
        tracked = self.running_mean is not None
        if tracked and (not self.training or input.numel() == input.shape[1]):
            mean, var = self._running()
            return functional.batch_norm(input, mean, var, weight, bias, False, 0.0, self.eps)
        if self.training and self.aside.real is not None:
            return self._masked(input, self._mask(self.aside.real, input), weight, bias)
        if self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
        mean, var = self._running()
        return functional.batch_norm(input, mean, var, weight, bias, True, self.momentum or 0.0, self.eps)

    def _running(self) -> tuple[Tensor | None, Tensor | None]:
        if self.running_mean is None or self.running_var is None:
            return None, None
        return self.running_mean.flatten(), self.running_var.flatten()

    def _masked(self, x: Tensor, real: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        """Normalise by the statistics of each client's real samples."""
        clients, batch = real.shape
        exact = torch.promote_types(x.dtype, torch.float32)  # bf16 is too imprecise for statistics
        shaped = x.reshape(batch, clients, self.num_features, -1).to(exact)
        mask = real.t().to(exact).view(batch, clients, 1, 1)
        count = (mask.sum((0, 3), keepdim=True) * shaped.shape[3]).clamp(min=1)
        mean = (shaped * mask).sum((0, 3), keepdim=True) / count
        var = ((shaped - mean).square() * mask).sum((0, 3), keepdim=True) / count
        running_mean, running_var = self.running_mean, self.running_var
        if running_mean is not None and running_var is not None:
            alone = count.view(clients) == 1
            single = alone.view(1, clients, 1, 1)
            mean = torch.where(single, running_mean.view(1, clients, -1, 1), mean)
            var = torch.where(single, running_var.view(1, clients, -1, 1), var)
            with torch.no_grad():
                share = (self.momentum or 0.0) * (~alone).to(exact).unsqueeze(1)
                unbiased = var * (count / (count - 1).clamp(min=1))
                running_mean.lerp_(mean.detach().view(clients, -1), share)
                running_var.lerp_(unbiased.detach().view(clients, -1), share)
                if self.num_batches_tracked is not None:
                    self.num_batches_tracked.add_((~alone).to(torch.int64))
        out = (shaped - mean) * torch.rsqrt(var + self.eps)
        if weight is not None and bias is not None:
            out = out * weight.view(1, clients, -1, 1) + bias.view(1, clients, -1, 1)
        return out.reshape(x.shape).to(x.dtype)


class FoldedBatchNormRelu(FoldedBatchNorm):
    """`FoldedBatchNorm` followed by the optional shortcut and ReLU."""

    def forward(self, input: Tensor, shortcut: Tensor | None = None) -> Tensor:
        """Return relu(norm(input) + shortcut), fused on a GPU."""
        fused = self._fused(input, shortcut, relu=True)
        return rectified(self._normalised(input), shortcut) if fused is None else fused
