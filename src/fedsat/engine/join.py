"""Joining BatchNorm with the sum and the ReLU behind it, so that a GPU goes over the activations once for all three."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional

SUMS: set[Callable[..., Any]] = {operator.add, operator.iadd, torch.add}
RELUS: set[Callable[..., Any]] = {torch.relu, torch.relu_, functional.relu, functional.relu_}


class _Tracer(fx.Tracer):
    """Looks into containers, not into layers."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        owns = [*m.parameters(recurse=False), *m.buffers(recurse=False)]
        return bool(owns) or super().is_leaf_module(m, module_qualified_name)


def join_norms(module: nn.Module) -> nn.Module:
    """The module with relu(norm(x) + y) as one call, norm(x, y, True), and relu(norm(x)) as norm(x, None, True).

    It stays as it is where it cannot be followed, or where its weights would change their names or places.
    """
    if not any(isinstance(layer, nn.BatchNorm2d) for layer in module.modules()):
        return module
    try:
        graph = _Tracer().trace(module)
    except Exception:  # a forward pass may do anything, and fail in any way when it is only followed
        return module
    for node in graph.nodes:
        if _is_relu(node, module) and (found := next(_norms_before(node, module), None)) is not None:
            _join(graph, node, *found)
    joined = fx.GraphModule(module, graph)
    return joined if _places(joined) == _places(module) else module


def _is_relu(node: fx.Node, module: nn.Module) -> bool:
    if node.op == "call_module":
        return type(module.get_submodule(str(node.target))) is nn.ReLU
    return node.op == "call_function" and node.target in RELUS


def _norms_before(relu: fx.Node, module: nn.Module) -> Iterator[tuple[fx.Node, fx.Node | None]]:
    """The norms whose output goes into the ReLU and nowhere else, and what is added to it."""
    (source,) = relu.all_input_nodes
    if len(source.users) > 1:
        return
    if _is_norm(source, module):
        yield source, None
    elif source.op == "call_function" and source.target in SUMS and not source.kwargs:
        terms = source.all_input_nodes  # one where a tensor is added to itself or to a number
        for norm, other in zip(terms, reversed(terms), strict=True):
            if len(terms) == 2 and _is_norm(norm, module) and len(norm.users) == 1:
                yield norm, other


def _is_norm(node: fx.Node, module: nn.Module) -> bool:
    return node.op == "call_module" and type(module.get_submodule(str(node.target))) is nn.BatchNorm2d


def _join(graph: fx.Graph, relu: fx.Node, norm: fx.Node, shortcut: fx.Node | None) -> None:
    with graph.inserting_before(relu):
        joined = graph.call_module(str(norm.target), (norm.args[0], shortcut, True))
    relu.replace_all_uses_with(joined)
    (source,) = relu.all_input_nodes
    for replaced in dict.fromkeys((relu, source, norm)):
        graph.erase_node(replaced)


def _places(module: nn.Module) -> tuple[set[str], list[str]]:
    """The names of all weights and, in their order, of the linear layers: the last of them is the classifier."""
    owned = {name for name, _ in (*module.named_parameters(), *module.named_buffers())}
    return owned, [name for name, layer in module.named_modules() if isinstance(layer, nn.Linear)]
