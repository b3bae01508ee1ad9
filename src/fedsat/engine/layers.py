"""Find the layers of a module that applies one after another, in training and in evaluation alike."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx, nn

ACTIVATIONS = (nn.ELU, nn.ReLU, nn.Sigmoid, nn.Tanh)
"""The activations of which the output determines the derivative."""

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
"""Where torch keeps a module's hooks, which would not be called."""

PARTS = {nn.AvgPool2d, nn.Conv2d, nn.Flatten, nn.Identity, nn.Linear, *ACTIVATIONS}
"""The modules that are known here."""


@dataclass(frozen=True)
class Layer:
    """A convolution or linear layer: the names of its weights, the activation after it, if any, and then pooling."""

    weight: str
    bias: str | None
    convolves: bool = False
    activation: nn.Module | None = None
    pool: int = 1
    """The side of the windows whose means follow."""


@dataclass(frozen=True)
class Layers:
    """The layers of a module, and how many of them come before `flatten`; None if it does not flatten."""

    layers: tuple[Layer, ...]
    flat_from: int | None

    @property
    def convolutions(self) -> int:
        """The number of convolutions."""
        return sum(layer.convolves for layer in self.layers)


def layers_of(module: nn.Module) -> Layers | None:
    """Return the layers of which `module` consists, convolutions first, or None if it is not such a sequence."""
    module = copy.deepcopy(module)
    found = _traced(module.train())
    return found if found == _traced(module.eval()) else None


def _traced(module: nn.Module) -> Layers | None:
    if any(type(part) not in PARTS for part in module.modules() if not list(part.children())):
        return None
    if any(isinstance(part, nn.ELU) and part.alpha < 0 for part in module.modules()):
        return None  # its output does not determine its slope
    try:
        graph = fx.Tracer().trace(module)
    except Exception:  # a module that fx cannot trace may raise anything
        return None
    modules, layers, flat_from = dict(module.named_modules()), list[Layer](), None
    first, *nodes, last = (node for node in graph.nodes if node.op != "get_attr")
    for before, node in zip([first, *nodes], [*nodes, last], strict=True):
        if node.args[:1] != (before,) or (node is not last and len(node.users) != 1):
            return None
        part = modules.get(str(node.target)) if node.op == "call_module" else None
        if node is last or type(part) is nn.Identity:
            continue
        if _is_flatten(node, part) and flat_from is None:
            flat_from = len(layers)
        elif isinstance(part, nn.Linear) or (isinstance(part, nn.Conv2d) and _is_plain(part)):
            bias = None if part.bias is None else f"{node.target}.bias"
            layers.append(Layer(f"{node.target}.weight", bias, isinstance(part, nn.Conv2d)))
        elif not layers or layers[-1].pool > 1 or flat_from == len(layers):
            return None
        elif isinstance(part, ACTIVATIONS) and layers[-1].activation is None:
            layers[-1] = replace(layers[-1], activation=part)
        elif isinstance(part, nn.AvgPool2d) and _has_windows(part) and layers[-1].convolves:
            side: Any = part.kernel_size
            layers[-1] = replace(layers[-1], pool=side)
        else:
            return None
    names = [name for layer in layers for name in (layer.weight, layer.bias) if name is not None]
    hooked = any(getattr(part, hooks) for part in modules.values() for hooks in HOOKS)
    complete = sorted(names) == sorted(name for name, _ in module.named_parameters())
    found = Layers(tuple(layers), flat_from)
    return found if complete and not hooked and _in_order(found) else None


def _in_order(found: Layers) -> bool:
    """Whether convolutions come first, then `flatten`, then linear layers, the last without an activation."""
    count = found.convolutions
    ordered = all(layer.convolves for layer in found.layers[:count]) and count < len(found.layers)
    return ordered and found.flat_from in ({count} if count else {None, 0}) and found.layers[-1].activation is None


def _is_flatten(node: fx.Node, part: nn.Module | None) -> bool:
    """Whether the node is `flatten` from the first axis after the batch."""
    if type(part) is nn.Flatten:
        return (part.start_dim, part.end_dim) == (1, -1)
    called = node.target == "flatten" or node.target is torch.flatten
    return called and node.args[1:] == (1,) and not node.kwargs


def _is_plain(part: nn.Conv2d) -> bool:
    """Whether the convolution has neither stride nor groups, and pads with zeros."""
    ones = part.stride == (1, 1) and part.dilation == (1, 1) and part.groups == 1
    return ones and part.padding_mode == "zeros" and not isinstance(part.padding, str)


def _has_windows(part: nn.AvgPool2d) -> bool:
    """Whether the windows are square and do not overlap."""
    side: Any = part.kernel_size
    plain = (part.stride, part.padding, part.ceil_mode, part.divisor_override) == (side, 0, False, None)
    return isinstance(side, int) and side > 1 and plain
