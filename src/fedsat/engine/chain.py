"""Chains: networks of linear layers with an activation after some of them, such as an MLP.

Their layers are small, so on a CPU a step through autograd and folding spends as much time on bookkeeping and copies as
on products. A chain is a single node of autograd with a backward pass written by hand. Activations are [S, F, B], the
layout of the products.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fedsat.algorithms import Outputs
from fedsat.engine.layers import Layer, layers_of
from fedsat.engine.network import Descent, Factors, bias_slope
from fedsat.tree import Tree

Slope = Callable[[Tensor, Tensor], Tensor]
"""Return ∂L/∂in of an activation from ∂L/∂out and its output."""

aten = torch.ops.aten
SLOPES: dict[type[nn.Module], Callable[[Any], Slope]] = {
    nn.ELU: lambda layer: lambda grad, out: aten.elu_backward(grad, layer.alpha, 1, 1, True, out),
    nn.ReLU: lambda _: lambda grad, out: aten.threshold_backward(grad, out, 0),
    nn.Sigmoid: lambda _: aten.sigmoid_backward,
    nn.Tanh: lambda _: aten.tanh_backward,
}
"""The derivatives of the activations (see `layers`)."""


class Chain:
    """The networks of many clients, if their module is a chain."""

    def __init__(self, layers: Sequence[Layer], flattens: bool) -> None:
        self._layers, self._flattens = layers, flattens

    @classmethod
    def of(cls, module: nn.Module) -> Chain | None:
        """Return the chain that `module` computes in training and in evaluation alike; None if it is not one."""
        found = layers_of(module)
        if found is None or found.convolutions:
            return None
        chain = cls(found.layers, found.flat_from is not None)
        return chain if chain._computes(copy.deepcopy(module).eval()) else None

    def _computes(self, module: nn.Module) -> bool:
        """Whether the chain returns what the module does; tracing misses autocast and a replaced `forward`."""
        weights = {name: tensor.detach().unsqueeze(0) for name, tensor in module.named_parameters()}
        first = weights[self._layers[0].weight]
        x = torch.linspace(-1, 1, 2 * first.shape[2], dtype=first.dtype, device=first.device).view(1, 2, -1)
        with torch.no_grad():
            return torch.allclose(self(weights, {}, x).logits[0], module(x[0]), rtol=1e-4, atol=1e-5)

    def suits(self, x: Tensor) -> bool:
        """Whether the chain is faster than the folded module for samples x [S, B, …], and defined for them."""
        return not x.is_cuda and (self._flattens or x.dim() == 3)

    def __call__(self, params: Tree, buffers: Tree, x: Tensor, factors: list[Descent] | None = None) -> Outputs:
        """Return the logits of samples x [S, B, …]; frozen weights are in `buffers`.

        The backward pass appends gradients of weights to `factors`, if given, instead of computing them.
        """
        names = [name for layer in self._layers for name in (layer.weight, layer.bias)]
        weights = [None if name is None else params.get(name, buffers.get(name)) for name in names]
        logits: Tensor = _ChainFunction.apply(x.flatten(2), self._layers, factors, *weights)  # type: ignore[no-untyped-call]
        return Outputs(logits)


class _ChainFunction(torch.autograd.Function):
    """Logits [S, B, m] of rows [S, B, F] and the weights and biases of all layers."""

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, layers: Sequence[Layer], factors: list[Descent] | None, *weights: Tensor | None
    ) -> Tensor:
        outs = _outputs(rows, layers, weights)
        ctx.save_for_backward(rows, *weights, *outs[:-1])
        ctx.layers, ctx.factors = layers, factors
        return outs[-1].transpose(1, 2)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        layers, count = ctx.layers, 2 * len(ctx.layers)
        rows, *saved = ctx.saved_tensors
        weights = saved[:count]
        if torch.is_grad_enabled():  # second derivatives are requested
            return _recomputed(ctx, rows, layers, weights, grad)
        ins = [rows.transpose(1, 2), *saved[count:]]
        grads: list[Tensor | None] = [None] * count
        slope = grad.transpose(1, 2)
        for number in reversed(range(len(layers))):
            weight, bias = weights[2 * number : 2 * number + 2]
            if number < len(layers) - 1:
                slope = _before(layers[number].activation, slope, ins[number + 1])
            if ctx.needs_input_grad[3 + 2 * number]:
                if ctx.factors is None:
                    grads[2 * number] = torch.bmm(slope, ins[number].transpose(1, 2))
                else:
                    ctx.factors.append(Factors(weight, ins[number], slope))
            if bias is not None and ctx.needs_input_grad[4 + 2 * number]:
                grads[2 * number + 1] = bias_slope(slope)
            if number or ctx.needs_input_grad[0]:
                slope = torch.bmm(weight.transpose(1, 2), slope)
        return slope.transpose(1, 2) if ctx.needs_input_grad[0] else None, None, None, *grads


def _before(activation: nn.Module | None, grad: Tensor, out: Tensor) -> Tensor:
    """Return the gradient before the activation."""
    return grad if activation is None else SLOPES[type(activation)](activation)(grad, out)


def _outputs(rows: Tensor, layers: Sequence[Layer], weights: Sequence[Tensor | None]) -> list[Tensor]:
    """Return the output of every layer, [S, F, B]."""
    outs = [rows.transpose(1, 2)]
    for layer, weight, bias in zip(layers, weights[::2], weights[1::2], strict=True):
        assert weight is not None
        linear = torch.bmm(weight, outs[-1]) if bias is None else torch.baddbmm(bias.unsqueeze(2), weight, outs[-1])
        outs.append(linear if layer.activation is None else layer.activation(linear))
    return outs[1:]


def _recomputed(
    ctx: Any, rows: Tensor, layers: Sequence[Layer], weights: Sequence[Tensor | None], grad: Tensor
) -> tuple[Tensor | None, ...]:
    """Return the gradients through autograd, so that they can be differentiated again."""
    out = _outputs(rows, layers, weights)[-1].transpose(1, 2)
    needed = [place for place, wanted in enumerate(ctx.needs_input_grad) if wanted]
    inputs: dict[int, Any] = dict(enumerate([rows, None, None, *weights]))
    found = torch.autograd.grad(out, [inputs[place] for place in needed], grad, create_graph=True)
    return tuple(dict(zip(needed, found, strict=True)).get(place) for place in inputs)
