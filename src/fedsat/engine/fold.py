"""Folding: the networks of many clients as one, with the client axis laid into the channels.

Activations are [B, S·C, …] with every client's channels side by side, so whatever works channel by channel or
element by element (activations, pooling, residual sums, `flatten(1)`) is right as it stands in a user's plain
module. Only the layers with weights are replaced: convolutions become grouped, a linear layer becomes a batched
matrix product, normalisations get S times the channels or groups. S is read off the weights, so one folded
module serves any number of clients.
"""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from fedsat.algorithms import Outputs
from fedsat.engine.network import last_layer_input
from fedsat.tree import Tree


class CannotFoldError(Exception):
    """The module has a layer that folding does not know."""


@dataclass
class Padding:
    """Which samples of the batch at hand are real, [S, B]; None where all are. Shared by a module's BatchNorms."""

    real: Tensor | None = None


class FoldedLinear(nn.Linear):
    """A linear layer for [B, S·in] with weights [S, out, in]."""

    def forward(self, input: Tensor) -> Tensor:
        """[B, S·out]."""
        clients = self.weight.shape[0]
        if input.dim() != 2:
            raise CannotFoldError("a linear layer on more than one axis of features")
        # W xᵀ rather than x Wᵀ: the gradient of W then lies in memory as W does, and the update is one straight pass.
        columns = input.reshape(len(input), clients, -1).permute(1, 2, 0)
        if self.bias is None:
            out = torch.bmm(self.weight, columns)
        else:
            out = torch.baddbmm(self.bias.unsqueeze(2), self.weight, columns)
        return out.permute(2, 0, 1).flatten(1)


def _grouped(function: Callable[..., Tensor], layer: Any, x: Tensor) -> Tensor:
    clients = layer.weight.shape[0]
    bias = None if layer.bias is None else layer.bias.flatten()
    groups = clients * layer.groups
    return function(x, layer.weight.flatten(0, 1), bias, layer.stride, layer.padding, layer.dilation, groups)


class FoldedConv1d(nn.Conv1d):
    """A convolution for [B, S·in, L] with weights [S, out, in, k], as one grouped convolution."""

    def forward(self, input: Tensor) -> Tensor:
        """[B, S·out, L′]."""
        return _grouped(functional.conv1d, self, input)


class FoldedConv2d(nn.Conv2d):
    """A convolution for [B, S·in, H, W] with weights [S, out, in, k, k], as one grouped convolution."""

    def forward(self, input: Tensor) -> Tensor:
        """[B, S·out, H′, W′]; on a GPU by a kernel of our own, unless a single client is evaluated."""
        kind = torch.bfloat16 if torch.is_autocast_enabled(input.device.type) else input.dtype
        # In float32 cuDNN is the faster one where channels are many.
        suited = kind == torch.bfloat16 or (kind == torch.float32 and min(self.in_channels, self.out_channels) <= 32)
        ours = input.is_cuda and suited and (self.training or len(self.weight) > 1)
        ours = ours and max(input.numel(), len(input) * self.weight[..., 0, 0, 0].numel() * input[0, 0].numel()) < 2**31
        if ours and self._plain() and (kernels := triton_conv()):
            out: Tensor = kernels.StackedConvolution.apply(input, self.weight, self.stride[0], self.padding[0], kind)
            return out if self.bias is None else out + self.bias.to(out.dtype).view(1, -1, 1, 1)
        return _grouped(functional.conv2d, self, input)

    def _plain(self) -> bool:
        """Whether the layer is square in every respect and not grouped itself."""
        pairs = (self.kernel_size, self.stride, self.padding)
        square = all(isinstance(pair, tuple) and pair[0] == pair[1] for pair in pairs)
        return square and self.dilation == (1, 1) and self.groups == 1


@cache
def triton_conv() -> ModuleType | None:
    """The Triton kernels, where Triton is installed (it comes with torch's CUDA builds)."""
    try:
        return importlib.import_module("fedsat.engine.triton_conv")
    except ImportError:
        return None


class FoldedGroupNorm(nn.GroupNorm):
    """GroupNorm with S times the groups."""

    def forward(self, input: Tensor) -> Tensor:
        """Normalise each group of each client."""
        clients = input.shape[1] // self.num_channels
        weight, bias = (None, None) if self.weight is None else (self.weight.flatten(), self.bias.flatten())
        return functional.group_norm(input, clients * self.num_groups, weight, bias, self.eps)


class FoldedBatchNorm(nn.modules.batchnorm._BatchNorm):
    """BatchNorm with S times the channels, whose statistics leave padding out."""

    padding: Padding

    def _check_input_dim(self, input: Tensor) -> None:
        del input

    def forward(self, input: Tensor) -> Tensor:
        """As torch's; a single value per channel is normalised by running statistics, as in `CarefulBatchNorm`."""
        weight, bias = (None, None) if self.weight is None else (self.weight.flatten(), self.bias.flatten())
        tracked = self.running_mean is not None
        if tracked and (not self.training or input.numel() == input.shape[1]):
            mean, var = self._running()
            return functional.batch_norm(input, mean, var, weight, bias, False, 0.0, self.eps)
        if self.training and self.padding.real is not None:
            return self._masked(input, self.padding.real, weight, bias)
        if self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
        mean, var = self._running()
        return functional.batch_norm(input, mean, var, weight, bias, True, self.momentum or 0.0, self.eps)

    def _running(self) -> tuple[Tensor | None, Tensor | None]:
        if self.running_mean is None or self.running_var is None:
            return None, None
        return self.running_mean.flatten(), self.running_var.flatten()

    def _masked(self, x: Tensor, real: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        """Statistics over the real samples of each client, written out."""
        clients, batch = real.shape
        exact = torch.promote_types(x.dtype, torch.float32)  # statistics in bf16 would be worthless
        shaped = x.reshape(batch, clients, self.num_features, -1).to(exact)
        mask = real.t().to(exact).view(batch, clients, 1, 1)
        count = mask.sum((0, 3), keepdim=True) * shaped.shape[3]
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


FOLDED: dict[type[nn.Module], type[nn.Module]] = {
    nn.Linear: FoldedLinear,
    nn.Conv1d: FoldedConv1d,
    nn.Conv2d: FoldedConv2d,
    nn.GroupNorm: FoldedGroupNorm,
    nn.BatchNorm1d: FoldedBatchNorm,
    nn.BatchNorm2d: FoldedBatchNorm,
}


def fold(module: nn.Module, padding: Padding) -> nn.Module:
    """A copy of `module` whose layers take the weights of many clients at once."""
    module = copy.deepcopy(module)
    for name, layer in module.named_modules():
        owns = [*layer.named_parameters(recurse=False), *layer.named_buffers(recurse=False)]
        if not owns:
            continue
        folded = FOLDED.get(type(layer))
        if folded is None or getattr(layer, "padding_mode", "zeros") != "zeros":
            raise CannotFoldError(f"{name or 'the module itself'} is a {type(layer).__name__} with weights of its own")
        layer.__class__ = folded
        if isinstance(layer, FoldedBatchNorm):
            if layer.momentum is None:
                raise CannotFoldError(f"{name} is a BatchNorm with a cumulative average")
            layer.padding = padding
    return module


class FoldedNetwork:
    """The networks of many clients as one function of stacked weights."""

    def __init__(self, module: nn.Module, features: bool, half: bool = False, channels_last: bool = True) -> None:
        """`half` computes in bf16 where torch's autocast thinks it safe; weights and outputs stay as they are.

        `channels_last` lays images so, which is faster; a module that calls `view` on them needs them as usual.
        """
        self._padding = Padding()
        self._half = half
        self._channels_last = channels_last and any(isinstance(layer, nn.Conv2d) for layer in module.modules())
        self._training = fold(module, self._padding).train()
        self._evaluating = fold(module, self._padding).eval()
        self._features = features

    def __call__(self, params: Tree, buffers: Tree, x: Tensor) -> Outputs:
        """Evaluation mode; `buffers` stay as they are."""
        return self._run(self._evaluating, params, buffers, x)

    def train(self, params: Tree, buffers: Tree, x: Tensor, real: Tensor | None) -> Outputs:
        """Training mode; running statistics in `buffers` move on. `real` marks padding, if there is any."""
        self._padding.real = real
        return self._run(self._training, params, buffers, x)

    def _run(self, module: nn.Module, params: Tree, buffers: Tree, x: Tensor) -> Outputs:
        clients, kind = len(x), x.dtype
        folded = x.transpose(0, 1).flatten(1, 2)  # no copy where x was gathered batch by batch
        if (
            folded.dim() == 4 and self._channels_last
        ):  # the order of tensor cores, and the faster one for grouped convolutions on a CPU too
            folded = folded.contiguous(memory_format=torch.channels_last)
        with torch.autocast(x.device.type, torch.bfloat16, enabled=self._half):
            if not self._features:
                return Outputs(_unfold(functional_call(module, (params, buffers), (folded,)), clients).to(kind))
            with last_layer_input(module) as seen:
                logits = functional_call(module, (params, buffers), (folded,))
        return Outputs(_unfold(logits, clients).to(kind), _unfold(seen[0], clients).to(kind))


def _unfold(folded: Tensor, clients: int) -> Tensor:
    return folded.reshape(len(folded), clients, -1).transpose(0, 1)
