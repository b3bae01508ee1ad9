"""Chains: networks of linear layers with an activation after some of them, such as an MLP.

Their layers are small, so on a CPU a step through autograd and folding spends as much time on bookkeeping and copies as
on products. A chain is a single node of autograd with a backward pass written by hand. Activations are [S, F, B], the
layout of the products.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx, nn

from fedsat.algorithms import Outputs
from fedsat.engine.network import Factors, Unformed, bias_slope
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
"""The activations of which the output determines the derivative."""

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
"""Where torch keeps a module's hooks, which a chain would not call."""

PARTS = {nn.Flatten, nn.Identity, nn.Linear, *SLOPES}
"""The modules of which a chain consists."""


@dataclass(frozen=True)
class Layer:
    """A linear layer: the names of its weights, and the activation after it, if any."""

    weight: str
    bias: str | None
    activation: nn.Module | None = None

    def slope(self, grad: Tensor, out: Tensor) -> Tensor:
        """Return the gradient before the activation."""
        return grad if self.activation is None else SLOPES[type(self.activation)](self.activation)(grad, out)


class Chain:
    """The networks of many clients, if their module is a chain."""

    def __init__(self, layers: Sequence[Layer], flattens: bool) -> None:
        self._layers, self._flattens = layers, flattens

    @classmethod
    def of(cls, module: nn.Module) -> Chain | None:
        """Return the chain that `module` computes in training and in evaluation alike; None if it is not one."""
        module = copy.deepcopy(module)
        traced = _traced(module.train())
        if traced is None or traced != _traced(module.eval()):
            return None
        chain = cls(*traced)
        return chain if chain._computes(module) else None

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

    def __call__(self, params: Tree, buffers: Tree, x: Tensor, factors: list[Unformed] | None = None) -> Outputs:
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
        ctx: Any, rows: Tensor, layers: Sequence[Layer], factors: list[Unformed] | None, *weights: Tensor | None
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
                slope = layers[number].slope(slope, ins[number + 1])
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


def _traced(module: nn.Module) -> tuple[list[Layer], bool] | None:
    """Return the layers of a chain and whether it flattens its input first; None if `module` is not a chain."""
    if any(type(part) not in PARTS for part in module.modules() if not list(part.children())):
        return None
    if any(isinstance(part, nn.ELU) and part.alpha < 0 for part in module.modules()):
        return None  # its output does not determine its slope
    try:
        graph = fx.Tracer().trace(module)
    except Exception:  # a module that fx cannot trace may raise anything
        return None
    modules, layers, flattens = dict(module.named_modules()), list[Layer](), False
    first, *nodes, last = (node for node in graph.nodes if node.op != "get_attr")
    for before, node in zip([first, *nodes], [*nodes, last], strict=True):
        if node.args[:1] != (before,) or (node is not last and len(node.users) != 1):
            return None
        layer = modules.get(str(node.target)) if node.op == "call_module" else None
        if node is not last and _is_flatten(node, layer) and not layers:
            flattens = True
        elif type(layer) is nn.Linear:
            layers.append(Layer(f"{node.target}.weight", None if layer.bias is None else f"{node.target}.bias"))
        elif type(layer) in SLOPES and layers and layers[-1].activation is None:
            layers[-1] = replace(layers[-1], activation=layer)
        elif node is not last and type(layer) is not nn.Identity:
            return None
    names = [name for layer in layers for name in (layer.weight, layer.bias) if name is not None]
    hooked = any(getattr(part, hooks) for part in modules.values() for hooks in HOOKS)
    complete = sorted(names) == sorted(name for name, _ in module.named_parameters())
    return (layers, flattens) if complete and layers and layers[-1].activation is None and not hooked else None


def _is_flatten(node: fx.Node, layer: nn.Module | None) -> bool:
    """Whether the node is `flatten` from the first axis after the batch."""
    if type(layer) is nn.Flatten:
        return (layer.start_dim, layer.end_dim) == (1, -1)
    called = node.target == "flatten" or node.target is torch.flatten
    return called and node.args[1:] == (1,) and not node.kwargs
