"""A network in evaluation mode in which each convolution includes the BatchNorm, the shortcut and the ReLU after it.

In evaluation mode, BatchNorm is an affine map of each channel. It becomes part of the convolution's weights, once for
each model, and what is left, a bias, a sum and ReLU, becomes part of the convolution's kernel. Activations are then
written and read once, where each of these layers would do it again.
"""

from __future__ import annotations

import copy
import operator
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, fx, nn
from torch.func import functional_call
from torch.nn import functional

from fedsat.algorithms import Model, Outputs
from fedsat.engine.kernels.fused import convolution
from fedsat.engine.layers import HOOKS
from fedsat.engine.norms import FoldedBatchNorm, FoldedBatchNormRelu
from fedsat.tree import Tree

SUMS = {operator.add, operator.iadd, torch.add, "add", "add_"}
RELUS = {nn.ReLU, functional.relu, functional.relu_, torch.relu, torch.relu_, "relu", "relu_"}


class FusedConvolution(nn.Conv2d):
    """A convolution of one client with the bias of its BatchNorm, an optional shortcut, and ReLU if `relu`."""

    relu: bool

    def forward(self, input: Tensor, shortcut: Tensor | None = None) -> Tensor:
        """Return relu(W ∗ input + b + shortcut)."""
        assert self.bias is not None
        x, geometry = input.to(self.weight.dtype), (self.stride[0], int(self.padding[0]))
        shortcut = None if shortcut is None else shortcut.to(x.dtype)
        with torch.autocast(x.device.type, enabled=False):
            return convolution(x, self.weight, self.bias, shortcut, self.relu, *geometry)


@dataclass(frozen=True)
class Pair:
    """A convolution and the BatchNorm after it, by name."""

    conv: str
    norm: str
    eps: float

    def fused(self, weights: Tree, kind: torch.dtype) -> Tree:
        """Return the weights and the bias of both together."""
        one = {name: tensor[0] for name, tensor in weights.items() if name.startswith((self.conv, self.norm))}
        scale = one.get(f"{self.norm}.weight", 1.0) / (one[f"{self.norm}.running_var"] + self.eps).sqrt()
        mean = one[f"{self.norm}.running_mean"] - one.get(f"{self.conv}.bias", 0.0)
        weight = (one[f"{self.conv}.weight"] * scale.view(-1, 1, 1, 1)).to(kind)
        return {
            f"{self.conv}.weight": weight.contiguous(memory_format=torch.channels_last),
            f"{self.conv}.bias": one.get(f"{self.norm}.bias", 0.0) - mean * scale,
        }


class FusedNetwork:
    """The network of one client in evaluation mode, as a function of weights that `prepare` returns."""

    def __init__(self, module: nn.Module, pairs: list[Pair], half: bool) -> None:
        self._module, self._pairs, self._half = module, pairs, half
        self._names = {name for name, _ in [*module.named_parameters(), *module.named_buffers()]}

    @classmethod
    def of(cls, folded: nn.Module, shape: tuple[int, ...], half: bool) -> FusedNetwork | None:
        """Return the network of a folded module for samples of this shape, or None.

        There is none without a convolution before a BatchNorm, or if fusing changes the results.
        """
        found = fuse(folded)
        suited = found is not None and _agrees(cls(*found, half=False), folded, shape)
        return cls(*found, half) if found is not None and suited else None

    def prepare(self, model: Model) -> Model:
        """Return the weights of one model (client axis of length one) for this network."""
        weights = {**model.params, **model.buffers}
        kind = torch.bfloat16 if self._half else next(iter(model.params.values())).dtype
        params = {name: tensor for name, tensor in weights.items() if name in self._names}
        for pair in self._pairs:
            params |= pair.fused(weights, kind)
        return Model(params, {})

    def __call__(self, params: Tree, buffers: Tree, x: Tensor) -> Outputs:
        """Return the logits for x [1, B, …]."""
        with torch.autocast(x.device.type, torch.bfloat16, enabled=self._half):
            logits = functional_call(self._module, (params, buffers), (x[0],))
        return Outputs(logits.flatten(1).unsqueeze(0).to(x.dtype))


class _Tracer(fx.Tracer):
    """Traces down to the layers."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return not list(m.children()) or super().is_leaf_module(m, module_qualified_name)


def fuse(folded: nn.Module) -> tuple[nn.Module, list[Pair]] | None:
    """Return a copy of a folded module with fused convolutions, and their norms; None if there is nothing to fuse."""
    module = copy.deepcopy(folded).eval()
    if any(getattr(part, hooks) for part in module.modules() for hooks in HOOKS):
        return None  # a fused layer would not call them
    if len(list(module.named_parameters(remove_duplicate=False))) > len(list(module.parameters())):
        return None
    try:
        traced = fx.GraphModule(module, _Tracer().trace(module))
    except Exception:  # a module that fx cannot trace may raise anything
        return None
    pairs = [pair for node in list(traced.graph.nodes) if (pair := _fused_at(node, traced)) is not None]
    traced.delete_all_unused_submodules()
    traced.recompile()
    return (traced, pairs) if pairs else None


def _fused_at(norm: fx.Node, traced: fx.GraphModule) -> Pair | None:
    """Fuse a BatchNorm with the convolution before it and with what follows, if the node is one."""
    layers: dict[str, Any] = dict(traced.named_modules())
    conv = norm.args[0] if norm.op == "call_module" and norm.args else None
    layer = layers.get(str(norm.target))
    if not isinstance(layer, FoldedBatchNorm) or layer.running_mean is None or not isinstance(conv, fx.Node):
        return None
    once = [node.target for node in traced.graph.nodes]
    alone = conv.op == "call_module" and len(conv.users) == len(conv.args) == 1
    before = layers.get(str(conv.target)) if alone else None
    if not getattr(before, "plain", False) or once.count(norm.target) + once.count(conv.target) > 2:
        return None
    last, shortcut, relu = _followed(norm, isinstance(layer, FoldedBatchNormRelu), layers)
    before = cast("FusedConvolution", before)
    before.__class__, before.relu = FusedConvolution, relu
    before.bias = nn.Parameter(torch.zeros(before.out_channels))
    with traced.graph.inserting_before(last):
        fused = traced.graph.call_module(str(conv.target), (conv.args[0], shortcut))
    last.replace_all_uses_with(fused)
    done = [last]
    while done[-1] is not conv:  # back to the convolution
        done.append(next(node for node in done[-1].all_input_nodes if node is not shortcut))
    for node in done:
        traced.graph.erase_node(node)
    return Pair(str(conv.target), str(norm.target), layer.eps)


def _followed(norm: fx.Node, relu: bool, layers: dict[str, Any]) -> tuple[fx.Node, fx.Node | None, bool]:
    """Return the last operation that can be fused, the shortcut, and whether there is ReLU."""
    given = norm.args[1] if len(norm.args) > 1 else norm.kwargs.get("shortcut")
    if relu:
        return norm, cast("fx.Node | None", given), True
    then = _only_user(norm)
    if then is not None and _is_relu(then, layers):
        return then, None, True
    if then is not None and then.target in SUMS and len(then.args) == 2 and not then.kwargs:
        other = next((arg for arg in then.args if arg is not norm), None)
        after = _only_user(then)
        if isinstance(other, fx.Node) and after is not None and _is_relu(after, layers):
            return after, other, True
    return norm, None, False


def _only_user(node: fx.Node) -> fx.Node | None:
    return next(iter(node.users)) if len(node.users) == 1 else None


def _is_relu(node: fx.Node, layers: dict[str, Any]) -> bool:
    return (type(layers.get(str(node.target))) if node.op == "call_module" else node.target) in RELUS


def _agrees(fused: FusedNetwork, folded: nn.Module, shape: tuple[int, ...]) -> bool:
    """Whether the network returns what the folded module does, in float64 with random weights."""
    draw = torch.Generator().manual_seed(0)

    def drawn(tensor: Tensor) -> Tensor:
        if not tensor.is_floating_point():
            return tensor.unsqueeze(0)
        # Variances must be positive.
        return 0.5 + torch.rand(1, *tensor.shape, generator=draw, dtype=torch.float64)

    params = {name: drawn(tensor) - 0.9 for name, tensor in folded.named_parameters()}
    buffers = {name: drawn(tensor) for name, tensor in folded.named_buffers()}
    x = torch.randn(1, 2, *shape, generator=draw, dtype=torch.float64)
    with torch.no_grad():
        wanted = functional_call(folded, (params, buffers), (x[0],))
        model = fused.prepare(Model(params, buffers))
        return torch.allclose(fused(model.params, model.buffers, x).logits[0], wanted.flatten(1), rtol=1e-8)
