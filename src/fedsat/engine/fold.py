"""Folding: combine the networks of many clients into one by moving the client axis into the channels.

Activations are [B, S·C, …] with the channels of all clients side by side. Operations on single channels or elements
(activations, pooling, residual sums, `flatten(1)`) in a plain user module are therefore correct without changes. Only
layers with weights are replaced: convolutions become grouped, a linear layer becomes a batched matrix product, and
normalisations get S times the channels or groups. S is inferred from the weights, so one folded module serves any
number of clients.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from fedsat.algorithms import Outputs
from fedsat.engine.chain import Chain
from fedsat.engine.fused import FusedNetwork
from fedsat.engine.kernels import triton_module
from fedsat.engine.kernels.quick import QuickAvgPool2d, QuickTanh
from fedsat.engine.native.network import NativeNetwork
from fedsat.engine.network import Aside, Descent, Factors, bias_slope, last_layer_input
from fedsat.engine.norms import FoldedBatchNorm, FoldedBatchNormRelu, FoldedGroupNorm, FoldedGroupNormRelu
from fedsat.models.norms import BatchNormRelu, GroupNormRelu
from fedsat.tree import Tree


class CannotFoldError(Exception):
    """The module has a layer that cannot be folded."""


class FoldedLinear(nn.Linear):
    """A linear layer for [B, S·in] with weights [S, out, in]."""

    aside: Aside

    def forward(self, input: Tensor) -> Tensor:
        """Return [B, S·out]."""
        clients = self.weight.shape[0]
        if input.dim() != 2:
            raise CannotFoldError("a linear layer is applied to more than one feature axis")
        # W xᵀ rather than x Wᵀ: the gradient then has the memory layout of W, and the update is one contiguous pass.
        columns = input.reshape(len(input), clients, -1).permute(1, 2, 0)
        if self.aside.factors is None:
            bias = None if self.bias is None else self.bias.unsqueeze(2)
            if bias is not None and bias.requires_grad and not columns.is_cuda:
                # On a CPU, torch sums the gradient of a broadcast bias in an order that depends on the number of
                # clients.
                bias = torch.bmm(bias, columns.new_ones(len(columns), 1, columns.shape[2]))
            out = torch.bmm(self.weight, columns) if bias is None else torch.baddbmm(bias, self.weight, columns)
        else:
            out = _leaving_factors(self.weight, self.bias, columns, self.aside.factors)
        return out.permute(2, 0, 1).flatten(1)


class _LeavingFactors(torch.autograd.Function):
    """W x + b for each client, [S, out, B]; the backward pass leaves the factors of the gradient of W."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, bias: Tensor | None, columns: Tensor, factors: list[Descent]) -> Tensor:
        ctx.save_for_backward(weight, columns)
        ctx.factors = factors
        return torch.bmm(weight, columns) if bias is None else torch.baddbmm(bias.unsqueeze(2), weight, columns)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        weight, columns = ctx.saved_tensors
        needs_weight, needs_bias, needs_columns, _ = ctx.needs_input_grad
        if needs_weight:
            # Detached, because a graph that reaches the list that holds it would never be freed.
            ctx.factors.append(Factors(weight, columns.detach(), grad))
        return None, bias_slope(grad) if needs_bias else None, weight.mT.bmm(grad) if needs_columns else None, None


_leaving_factors = cast("Callable[..., Tensor]", _LeavingFactors.apply)


def _grouped(function: Callable[..., Tensor], layer: Any, x: Tensor) -> Tensor:
    clients = layer.weight.shape[0]
    bias = None if layer.bias is None else layer.bias.flatten()
    groups = clients * layer.groups
    return function(x, layer.weight.flatten(0, 1), bias, layer.stride, layer.padding, layer.dilation, groups)


class FoldedConv1d(nn.Conv1d):
    """A convolution for [B, S·in, L] with weights [S, out, in, k], as one grouped convolution."""

    def forward(self, input: Tensor) -> Tensor:
        """Return [B, S·out, L′]."""
        return _grouped(functional.conv1d, self, input)


class FoldedConv2d(nn.Conv2d):
    """A convolution for [B, S·in, H, W] with weights [S, out, in, k, k], as one grouped convolution."""

    aside: Aside
    order: torch.memory_format
    """Memory format of the outputs."""
    planes: bool
    """Whether the layer has so few channels that the contiguous format is faster on a GPU."""

    def forward(self, input: Tensor) -> Tensor:
        """Return [B, S·out, H′, W′], computed by Triton kernels or by cuDNN, whichever is faster."""
        kind = torch.bfloat16 if torch.is_autocast_enabled(input.device.type) else input.dtype
        # In float32, cuDNN is faster for many channels.
        suited = kind == torch.bfloat16 or (kind == torch.float32 and min(self.in_channels, self.out_channels) <= 32)
        ours = input.is_cuda and suited and self.plain
        ours = ours and max(input.numel(), len(input) * self.weight[..., 0, 0, 0].numel() * input[0, 0].numel()) < 2**31
        if ours and self.planes and kind == torch.float32 and (kernels := triton_module("triton_small")):
            return cast("Tensor", kernels.SmallConvolution.apply(input, self.weight, self.bias, self.padding[0]))
        if ours and (self.training or len(self.weight) > 1) and (kernels := triton_module("triton_conv")):
            geometry = self.stride[0], self.padding[0]
            given = input, self.weight, *geometry, kind, self.order, self.aside.parts
            out: Tensor = kernels.StackedConvolution.apply(*given)
            return out if self.bias is None else out + self.bias.to(out.dtype).view(1, -1, 1, 1)
        return _grouped(functional.conv2d, self, input.contiguous(memory_format=self.order))

    def small(self) -> bool:
        """Whether the sums over outputs and over taps fit into a thread's registers (see `triton_small`)."""
        few = max(self.in_channels, self.out_channels) <= 16 and self.kernel_size[0] <= 5
        return few and self.plain and self.stride == (1, 1) and 2 * int(self.padding[0]) < self.kernel_size[0]

    @property
    def plain(self) -> bool:
        """Whether the layer is square in every respect and not grouped."""
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
    """Return a copy of `module` that uses the weights of many clients at once, in training or evaluation mode.

    Convolutions return images in the memory format `order`.
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
            raise CannotFoldError(f"{name or 'the module itself'} is a {type(layer).__name__} with its own weights")
        layer.__class__ = folded
        if isinstance(layer, FoldedBatchNorm) and layer.momentum is None:
            raise CannotFoldError(f"{name} is a BatchNorm with a cumulative average")
        if isinstance(layer, FoldedBatchNorm | FoldedLinear | FoldedConv2d):
            layer.aside = aside
        if isinstance(layer, FoldedBatchNorm | FoldedConv2d):
            layer.order = order
        if isinstance(layer, FoldedConv2d):
            layer.planes = layer.small() and not normed  # the BatchNorm kernels need channels last
    return module


class FoldedNetwork:
    """The networks of many clients as one function of stacked weights."""

    def __init__(
        self,
        module: nn.Module,
        features: bool,
        half: bool = False,
        channels_last: bool = True,
        shape: tuple[int, ...] | None = None,
    ) -> None:
        """Fold `module`; with the samples' `shape`, C computes it if it can.

        With `half`, products use bf16 where torch's autocast considers it safe; weights and outputs keep their type.
        `channels_last` is faster, but a module that calls `view` on images needs the contiguous format.
        """
        self._aside = Aside()
        self._half = half
        # Tensor cores need channels last, and grouped convolutions on a CPU are faster with it too.
        self._order = order = torch.channels_last if channels_last else torch.contiguous_format
        self._training = fold(module, self._aside, order, training=True)
        self._evaluating = fold(module, Aside(), order, training=False)
        self._features = features
        self._chain = None if features or half else Chain.of(module)
        self._native = None if features or half or shape is None else NativeNetwork.of(module, shape)
        # Checking for tied weights in every call would take longer than a small layer.
        self._tied = len(list(module.named_parameters(remove_duplicate=False))) > len(list(module.parameters()))

    def fused(self, shape: tuple[int, ...]) -> FusedNetwork | None:
        """Return a faster network for evaluating one model in bf16 on a GPU, if there is one."""
        suited = self._half and self._order == torch.channels_last
        return FusedNetwork.of(self._evaluating, shape, self._half) if suited else None

    def __call__(self, params: Tree, buffers: Tree, x: Tensor) -> Outputs:
        """Run in evaluation mode; `buffers` do not change."""
        if self._native is not None and self._native.suits(x):
            reference = partial(self._reference, self._evaluating, params, buffers, x)
            return self._native(params, buffers, x, reference)
        if self._chain is not None and self._chain.suits(x):
            return self._chain(params, buffers, x)
        return self._run(self._evaluating, params, buffers, x)

    def train(
        self,
        params: Tree,
        buffers: Tree,
        x: Tensor,
        real: Tensor | None = None,
        factors: list[Descent] | None = None,
    ) -> Outputs:
        """Run in training mode and update the running statistics in `buffers`; `real` marks padding, if any.

        Where it is faster, the backward pass appends gradients of weights to `factors` instead of returning them.
        """
        if self._native is not None and self._native.suits(x):
            reference = partial(self._reference, self._training, params, buffers, x)
            return self._native(params, buffers, x, reference, factors)
        if self._chain is not None and self._chain.suits(x):
            return self._chain(params, buffers, x, factors)
        self._aside.real = real
        self._aside.factors = None if x.is_cuda or self._half else factors
        self._aside.parts = factors if x.is_cuda else None
        try:
            return self._run(self._training, params, buffers, x)
        finally:  # factors keep the step's graph alive, which must end with the step
            self._aside.real = self._aside.factors = self._aside.parts = None

    @property
    def compiler(self) -> str | None:
        """The compiler of the network, or None if torch computes it."""
        return None if self._native is None else self._native.compiler

    def _reference(self, module: nn.Module, params: Tree, buffers: Tree, x: Tensor) -> Tensor:
        return self._run(module, params, buffers, x).logits

    def _run(self, module: nn.Module, params: Tree, buffers: Tree, x: Tensor) -> Outputs:
        clients, kind = len(x), x.dtype
        folded = x.transpose(0, 1).flatten(1, 2)  # no copy if x was gathered batch by batch
        with torch.autocast(x.device.type, torch.bfloat16, enabled=self._half):
            if not self._features:
                logits = functional_call(module, (params, buffers), (folded,), tie_weights=self._tied)
                return Outputs(_unfold(logits, clients).to(kind))
            with last_layer_input(module) as seen:
                logits = functional_call(module, (params, buffers), (folded,), tie_weights=self._tied)
        return Outputs(_unfold(logits, clients).to(kind), _unfold(seen[0], clients).to(kind))


def _unfold(folded: Tensor, clients: int) -> Tensor:
    return folded.reshape(len(folded), clients, -1).transpose(0, 1)
