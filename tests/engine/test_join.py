"""Joining BatchNorm with what follows changes nothing but the number of calls."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from fedsat.engine.join import join_norms
from fedsat.engine.norms import FoldedBatchNorm
from fedsat.models import build_model


class Blocks(nn.Module):
    """Norms before a ReLU of every kind, and such as have to stay alone."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(3, 3, 1) for _ in range(4))
        self.norms = nn.ModuleList(nn.BatchNorm2d(3) for _ in range(4))
        self.relu = nn.ReLU()
        self.last = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.norms[0](self.convs[0](x)))
        x = functional.relu(x + self.norms[1](self.convs[1](x)))
        twice = self.norms[2](self.convs[2](x))  # goes two ways
        x = torch.relu(twice) - twice
        x = torch.tanh(self.norms[3](self.convs[3](x)))  # another activation
        return self.last(x.mean((2, 3)))


class Branching(nn.Sequential):
    """Asks for values, which tracing does not have."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if x.sum() > 0 else super().forward(-x)


def joined_calls(module: nn.Module) -> list[tuple[Any, ...]]:
    """The arguments of all joined norms behind the first."""
    assert isinstance(module, fx.GraphModule)
    norms = (nn.BatchNorm2d, FoldedBatchNorm)
    calls = [node for node in module.graph.nodes if node.op == "call_module"]
    return [node.args[1:] for node in calls if isinstance(module.get_submodule(node.target), norms)]


def test_every_relu_behind_a_norm_is_joined_with_it() -> None:
    calls = joined_calls(join_norms(Blocks()))
    assert [call[1:] for call in calls] == [(True,), (True,), (), ()]
    assert calls[0][0] is None
    assert isinstance(calls[1][0], fx.Node)


def test_a_residual_network_keeps_only_its_shortcuts_apart() -> None:
    calls = joined_calls(join_norms(build_model("resnet8", (3, 8, 8), 10, 0)))
    assert [len(call) for call in calls].count(0) == 2
    assert len(calls) == 9


@pytest.mark.parametrize("training", [True, False])
def test_the_joined_module_computes_the_same(training: bool) -> None:
    torch.manual_seed(0)
    module = Blocks().double().train(training)
    x = torch.randn(4, 3, 5, 5, dtype=torch.float64)
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    wanted, moved = module(x), {name: tensor.clone() for name, tensor in module.state_dict().items()}
    module.load_state_dict(before)
    joined = join_norms(module)
    for layer in joined.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.__class__ = FoldedBatchNorm  # type: ignore[assignment]
            layer.aside = type("Nothing", (), {"real": None})()  # type: ignore[assignment]
    assert torch.equal(joined(x), wanted)
    assert all(torch.equal(moved[name], tensor) for name, tensor in joined.state_dict().items())


def test_what_cannot_be_followed_stays_as_it_is() -> None:
    module = Branching(nn.BatchNorm2d(3), nn.ReLU())
    assert join_norms(module) is module


def test_a_module_with_an_idle_layer_stays_as_it_is() -> None:
    module = Blocks()
    module.idle = nn.Linear(3, 3)
    assert join_norms(module) is module
