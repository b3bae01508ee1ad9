"""Chains equal the folded modules that they replace."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedsat.engine.chain import Chain
from fedsat.engine.fold import FoldedNetwork
from fedsat.engine.network import Factors
from fedsat.models import MLP


class Noisy(nn.Sequential):
    """A chain in evaluation only."""

    def forward(self, input: Tensor) -> Tensor:
        out: Tensor = super().forward(input)
        return out + 1 if self.training else out


class Doubled(nn.Module):
    """A chain with a skip connection."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x)
        return out + x


class Halved(nn.Sequential):
    """A chain in bf16, which tracing does not see."""

    def forward(self, input: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            out: Tensor = super().forward(input)
        return out.float()


def hooked(kind: str) -> nn.Module:
    layer = nn.Linear(6, 3)
    getattr(layer, f"register_{kind}_hook")(lambda *_: None)
    return nn.Sequential(layer)


CHAINS: dict[str, nn.Module] = {
    "mlp": MLP((2, 3), 3, hidden=(5, 4)),
    "projection": MLP((2, 3), 3, hidden=(5,), projection=4),
    "activations": nn.Sequential(
        nn.Flatten(), nn.Linear(6, 5, bias=False), nn.ReLU(inplace=True), nn.Linear(5, 4), nn.Tanh(), nn.Identity(),
        nn.Linear(4, 4), nn.Sigmoid(), nn.Linear(4, 3), nn.ELU(alpha=0.7), nn.Linear(3, 3),
    ),
}  # fmt: skip
OTHERS: dict[str, nn.Module] = {
    "an activation at the end": nn.Sequential(nn.Linear(6, 3), nn.ReLU()),
    "two activations": nn.Sequential(nn.Linear(6, 3), nn.ReLU(), nn.Tanh(), nn.Linear(3, 3)),
    "an activation without a slope": nn.Sequential(nn.Linear(6, 3), nn.GELU(), nn.Linear(3, 3)),
    "dropout": nn.Sequential(nn.Linear(6, 3), nn.Dropout(), nn.Linear(3, 3)),
    "training differs": Noisy(nn.Linear(6, 3)),
    "a skip connection": Doubled(),
    "a layer used twice": nn.Sequential(*[nn.Linear(6, 6)] * 2),
    "a hook": hooked("forward"),
    "a backward hook": hooked("full_backward"),
    "autocast": Halved(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 3)),
    "a slope that the output does not determine": nn.Sequential(nn.Linear(6, 3), nn.ELU(-0.5), nn.Linear(3, 3)),
    "no layer": nn.Sequential(nn.Flatten()),
    "an unused layer": MLP((6,), 3),
}
OTHERS["an unused layer"].extra = nn.Linear(2, 2)


def drawn(module: nn.Module) -> tuple[dict[str, Tensor], Tensor]:
    """Return weights of three clients, and four samples of each."""
    draw = torch.Generator().manual_seed(0)
    shapes = {name: (3, *tensor.shape) for name, tensor in module.named_parameters()}
    options: dict[str, Any] = {"generator": draw, "dtype": torch.float64}
    params = {name: torch.randn(shape, **options).requires_grad_() for name, shape in shapes.items()}
    return params, torch.randn(3, 4, 2, 3, **options).requires_grad_()


@pytest.mark.parametrize("module", CHAINS.values(), ids=CHAINS)
def test_logits_and_derivatives_equal_the_folded_modules(module: nn.Module) -> None:
    params, x = drawn(module)
    inputs = [*params.values(), x]
    chain, folded = Chain.of(module), FoldedNetwork(module, features=False)
    folded._chain = None
    assert chain is not None
    found = []
    for network in (chain, folded.train, folded):
        logits = network(params, {}, x).logits
        first = torch.autograd.grad(logits.sin().sum(), inputs, create_graph=True)
        second = torch.autograd.grad(sum(grad.square().sum() for grad in first), inputs)
        plain = torch.autograd.grad(network(params, {}, x).logits.sin().sum(), inputs)
        found.append((logits, *first, *second, *plain))
    for ours, wanted, evaluated in zip(*found, strict=True):
        torch.testing.assert_close(ours, wanted, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(ours, evaluated, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("module", CHAINS.values(), ids=CHAINS)
def test_factors_make_the_gradients(module: nn.Module) -> None:
    params, x = drawn(module)
    chain, factors = Chain.of(module), list[Factors]()
    assert chain is not None
    wanted = torch.autograd.grad(chain(params, {}, x).logits.sin().sum(), list(params.values()))
    logits = chain(params, {}, x, factors).logits
    grads = torch.autograd.grad(logits.sin().sum(), list(params.values()), allow_unused=True)
    formed = {id(one.weight): one.slope @ one.columns.mT for one in factors}
    assert len(formed) == sum(name.endswith("weight") for name in params)
    for weight, grad, exact in zip(params.values(), grads, wanted, strict=True):
        torch.testing.assert_close(formed[id(weight)] if grad is None else grad, exact)


@pytest.mark.parametrize("module", OTHERS.values(), ids=OTHERS)
def test_other_modules_are_folded(module: nn.Module) -> None:
    assert Chain.of(module) is None


def test_a_frozen_layer_gets_no_gradient() -> None:
    module = CHAINS["mlp"]
    params, x = drawn(module)
    frozen = {name: params.pop(name).detach() for name in ("hidden.0.weight", "hidden.0.bias")}
    chain, factors = Chain.of(module), list[Factors]()
    assert chain is not None
    chain(params, frozen, x.detach(), factors).logits.sum().backward()
    assert [one.weight.shape for one in factors] == [(3, 3, 4), (3, 4, 5)]


def test_images_need_a_layer_that_flattens_them() -> None:
    chain = Chain.of(nn.Sequential(nn.Linear(3, 3)))
    assert chain is not None
    assert chain.suits(torch.zeros(2, 4, 3))
    assert not chain.suits(torch.zeros(2, 4, 2, 3))
