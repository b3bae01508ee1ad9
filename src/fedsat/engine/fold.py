"""Folding: the networks of many clients as one, with the client axis laid into the channels.

Activations are [B, S·C, …] with every client's channels side by side, so whatever works channel by channel or
element by element (activations, pooling, residual sums, `flatten(1)`) is right as it stands in a user's plain
module. Only the layers with weights are replaced: convolutions become grouped, a linear layer becomes a batched
matrix product, normalisations get S times the channels or groups. S is read off the weights, so one folded
module serves any number of clients.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge
from torch.func import functional_call
from torch.nn import functional

from fedsat.algorithms import Outputs
from fedsat.engine.kernels import triton_module
from fedsat.engine.kernels.quick import QuickAvgPool2d, QuickTanh
from fedsat.engine.network import Aside, Factors, last_layer_input
from fedsat.engine.norms import FoldedBatchNorm, FoldedBatchNormRelu, FoldedGroupNorm, FoldedGroupNormRelu
from fedsat.models.norms import BatchNormRelu, GroupNormRelu
from fedsat.tree import Tree


class CannotFoldError(Exception):
    """The module has a layer that folding does not know."""


class FoldedLinear(nn.Linear):
    """A linear layer for [B, S·in] with weights [S, out, in]."""

    aside: Aside

    def forward(self, input: Tensor) -> Tensor:
        """[B, S·out]."""
        clients = self.weight.shape[0]
        if input.dim() != 2:
            raise CannotFoldError("a linear layer on more than one axis of features")
        # W xᵀ rather than x Wᵀ: the gradient of W then lies in memory as W does, and the update is one straight pass.
        columns = input.reshape(len(input), clients, -1).permute(1, 2, 0)
        factors = self.aside.factors if self.weight.requires_grad else None
        if factors is not None and (columns.requires_grad or (self.bias is not None and self.bias.requires_grad)):
            out = self._product(self.weight.detach(), columns)
            # The edge, not the tensor: whatever follows may change the tensor in place.
            factors.append(Factors(self.weight, columns.detach(), get_gradient_edge(out)))
        else:
            out = self._product(self.weight, columns)
        return out.permute(2, 0, 1).flatten(1)

    def _product(self, weight: Tensor, columns: Tensor) -> Tensor:
        """W x + b for each client, [S, out, B]."""
        if self.bias is None:
            return torch.bmm(weight, columns)
        return torch.baddbmm(self.bias.unsqueeze(2), weight, columns)


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

    order: torch.memory_format
    """In which images lie in memory behind this layer."""
    planes: bool
    """Whether channels are so few that a GPU is faster with images in planes, whatever the order elsewhere."""

    def forward(self, input: Tensor) -> Tensor:
        """[B, S·out, H′, W′]; on a GPU by kernels of our own, but a single client with many channels by cuDNN."""
        kind = torch.bfloat16 if torch.is_autocast_enabled(input.device.type) else input.dtype
        # In float32 cuDNN is the faster one where channels are many.
        suited = kind == torch.bfloat16 or (kind == torch.float32 and min(self.in_channels, self.out_channels) <= 32)
        ours = input.is_cuda and suited and self._plain()
        ours = ours and max(input.numel(), len(input) * self.weight[..., 0, 0, 0].numel() * input[0, 0].numel()) < 2**31
        if ours and self.planes and kind == torch.float32 and (kernels := triton_module("triton_small")):
            return cast("Tensor", kernels.SmallConvolution.apply(input, self.weight, self.bias, self.padding[0]))
        if ours and (self.training or len(self.weight) > 1) and (kernels := triton_module("triton_conv")):
            geometry = self.stride[0], self.padding[0]
            out: Tensor = kernels.StackedConvolution.apply(input, self.weight, *geometry, kind, self.order)
            return out if self.bias is None else out + self.bias.to(out.dtype).view(1, -1, 1, 1)
        return _grouped(functional.conv2d, self, input.contiguous(memory_format=self.order))

    def small(self) -> bool:
        """Whether sums over its outputs, and over its taps, fit into a thread's registers (see `triton_small`)."""
        few = max(self.in_channels, self.out_channels) <= 16 and self.kernel_size[0] <= 5
        return few and self._plain() and self.stride == (1, 1) and 2 * int(self.padding[0]) < self.kernel_size[0]

    def _plain(self) -> bool:
        """Whether the layer is square in every respect and not grouped itself."""
        pairs = (self.kernel_size, self.stride, self.padding)
        square = all(isinstance(pair, tuple) and pair[0] == pair[1] for pair in pairs)
        return square and self.dilation == (1, 1) and self.groups == 1


FOLDED: dict[type[nn.Module], type[nn.Module]] = {
    nn.Linear: FoldedLinear,
    nn.Conv1d: FoldedConv1d,
    nn.Conv2d: FoldedConv2d,
    nn.GroupNorm: FoldedGroupNorm,
    nn.BatchNorm1d: FoldedBatchNorm,
    nn.BatchNorm2d: FoldedBatchNorm,
    BatchNormRelu: FoldedBatchNormRelu,
    GroupNormRelu: FoldedGroupNormRelu,
}
QUICK: dict[type[nn.Module], type[nn.Module]] = {nn.Tanh: QuickTanh, nn.AvgPool2d: QuickAvgPool2d}


def fold(module: nn.Module, aside: Aside, order: torch.memory_format, *, training: bool) -> nn.Module:
    """A copy of `module` whose layers take the weights of many clients at once, in training or evaluation mode.

    `order` is that in which convolutions lay images in memory.
    """
    module = copy.deepcopy(module).train(training)
    normed = any(isinstance(layer, nn.modules.batchnorm._BatchNorm) for layer in module.modules())
    for name, layer in module.named_modules():
        owns = [*layer.named_parameters(recurse=False), *layer.named_buffers(recurse=False)]
        layer.__class__ = QUICK.get(type(layer), type(layer))
        if not owns:
            continue
        folded = FOLDED.get(type(layer))
        if folded is None or getattr(layer, "padding_mode", "zeros") != "zeros":
            raise CannotFoldError(f"{name or 'the module itself'} is a {type(layer).__name__} with weights of its own")
        layer.__class__ = folded
        if isinstance(layer, FoldedBatchNorm) and layer.momentum is None:
            raise CannotFoldError(f"{name} is a BatchNorm with a cumulative average")
        if isinstance(layer, FoldedBatchNorm | FoldedLinear):
            layer.aside = aside
        if isinstance(layer, FoldedBatchNorm | FoldedConv2d):
            layer.order = order
        if isinstance(layer, FoldedConv2d):
            layer.planes = layer.small() and not normed  # our kernels of BatchNorm want channels last
    return module


class FoldedNetwork:
    """The networks of many clients as one function of stacked weights."""

    def __init__(self, module: nn.Module, features: bool, half: bool = False, channels_last: bool = True) -> None:
        """`half` computes in bf16 where torch's autocast thinks it safe; weights and outputs stay as they are.

        `channels_last` lays images so, which is faster; a module that calls `view` on them needs them as usual.
        """
        self._aside = Aside()
        self._half = half
        # Channels last is the order of tensor cores, and the faster one for grouped convolutions on a CPU too.
        order = torch.channels_last if channels_last else torch.contiguous_format
        self._training = fold(module, self._aside, order, training=True)
        self._evaluating = fold(module, Aside(), order, training=False)
        self._features = features
        # Whether a weight has several names. To look for them at every call takes longer than a small layer.
        self._tied = len(list(module.named_parameters(remove_duplicate=False))) > len(list(module.parameters()))

    def __call__(self, params: Tree, buffers: Tree, x: Tensor) -> Outputs:
        """Evaluation mode; `buffers` stay as they are."""
        return self._run(self._evaluating, params, buffers, x)

    def train(
        self,
        params: Tree,
        buffers: Tree,
        x: Tensor,
        real: Tensor | None = None,
        factors: list[Factors] | None = None,
    ) -> Outputs:
        """Training mode; running statistics in `buffers` move on. `real` marks padding, if there is any.

        Into `factors` go gradients of weights as factors, where that is the faster way.
        """
        self._aside.real = real
        self._aside.factors = None if x.is_cuda or self._half else factors
        try:
            return self._run(self._training, params, buffers, x)
        finally:  # factors hold the step's graph, which must not outlive the step
            self._aside.real = self._aside.factors = None

    def _run(self, module: nn.Module, params: Tree, buffers: Tree, x: Tensor) -> Outputs:
        clients, kind = len(x), x.dtype
        folded = x.transpose(0, 1).flatten(1, 2)  # no copy where x was gathered batch by batch
        with torch.autocast(x.device.type, torch.bfloat16, enabled=self._half):
            if not self._features:
                logits = functional_call(module, (params, buffers), (folded,), tie_weights=self._tied)
                return Outputs(_unfold(logits, clients).to(kind))
            with last_layer_input(module) as seen:
                logits = functional_call(module, (params, buffers), (folded,), tie_weights=self._tied)
        return Outputs(_unfold(logits, clients).to(kind), _unfold(seen[0], clients).to(kind))


def _unfold(folded: Tensor, clients: int) -> Tensor:
    return folded.reshape(len(folded), clients, -1).transpose(0, 1)
