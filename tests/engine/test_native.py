"""Networks in C equal the folded modules that they replace."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fedsat
from fedsat.algorithms import Batch, Outputs, algorithms
from fedsat.engine import StackedEngine
from fedsat.engine.capacity import runs_that_pay
from fedsat.engine.examples import Examples
from fedsat.engine.fold import FoldedNetwork
from fedsat.engine.losses import quick
from fedsat.engine.native import library as compiling
from fedsat.engine.native.library import library
from fedsat.engine.native.loss import CompiledSensitiveLoss
from fedsat.engine.native.network import NativeNetwork
from fedsat.engine.network import Step
from fedsat.models import MLP, LeNet5
from fedsat.tree import tree_map
from tests.support.federations import furthest, image_dataset, make_engine, run_rounds

pytestmark = pytest.mark.skipif(library(torch.float64) is None, reason="no C compiler, or no OpenMP of GCC")

SHAPE = (3, 9, 11)
NETWORKS: dict[str, nn.Module] = {
    "mlp": MLP(SHAPE, 3, hidden=(21, 18)),
    "lenet5": LeNet5((3, 12, 13), 10),
    "paddings and windows": nn.Sequential(
        nn.Conv2d(3, 7, 3, padding=2), nn.ReLU(), nn.Conv2d(7, 5, (3, 2), padding=(0, 1), bias=False), nn.AvgPool2d(4),
        nn.Conv2d(5, 2, 1), nn.ELU(alpha=0.7), nn.Flatten(), nn.Linear(2 * 2 * 3, 13), nn.Sigmoid(), nn.Identity(),
        nn.Linear(13, 33), nn.Tanh(), nn.Linear(33, 4, bias=False),
    ),
}  # fmt: skip
NETWORKS["a convolution of one pixel"] = nn.Sequential(
    nn.Conv2d(3, 4, (9, 11)), nn.Tanh(), nn.Conv2d(4, 5, 3, padding=1), nn.ReLU(), nn.Conv2d(5, 6, 1), nn.Flatten(),
    nn.Linear(6, 3),
)  # fmt: skip
OTHERS: dict[str, nn.Module] = {
    "a stride": nn.Sequential(nn.Conv2d(3, 2, 3, stride=2), nn.Flatten(), nn.Linear(40, 3)),
    "groups": nn.Sequential(nn.Conv2d(3, 3, 3, groups=3), nn.Flatten(), nn.Linear(189, 3)),
    "other padding": nn.Sequential(
        nn.Conv2d(3, 2, 3, padding=1, padding_mode="circular"), nn.Flatten(), nn.Linear(198, 3)
    ),
    "windows that overlap": nn.Sequential(
        nn.Conv2d(3, 2, 3), nn.AvgPool2d(2, stride=1), nn.Flatten(), nn.Linear(96, 3)
    ),
    "no linear layer": nn.Sequential(nn.Conv2d(3, 2, SHAPE[1:]), nn.Flatten()),
    "a linear layer on images": nn.Sequential(nn.Linear(11, 3)),
    "an activation after pooling": nn.Sequential(
        nn.Conv2d(3, 2, 3), nn.AvgPool2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(24, 3)
    ),
}


def native(module: nn.Module, shape: tuple[int, ...] = SHAPE) -> NativeNetwork:
    found = NativeNetwork.of(module, shape)
    assert found is not None
    return found


def drawn(module: nn.Module, clients: int, batch: int, shape: tuple[int, ...]) -> tuple[dict[str, Tensor], Tensor]:
    """Return weights of some clients, and samples [S, B, …] of each, in the layout of a gathered batch."""
    draw = torch.Generator().manual_seed(batch)
    options: dict[str, Any] = {"generator": draw, "dtype": torch.float64}
    params = {
        name: (torch.randn(clients, *tensor.shape, **options) / 3).requires_grad_()
        for name, tensor in module.named_parameters()
    }
    return params, torch.randn(batch, clients, *shape, **options).transpose(0, 1)


@pytest.mark.parametrize("batch", [1, 8, 16, 37])
@pytest.mark.parametrize("module", NETWORKS.values(), ids=NETWORKS)
def test_logits_and_gradients_equal_the_folded_modules(module: nn.Module, batch: int) -> None:
    shape = (3, 12, 13) if isinstance(module, LeNet5) else SHAPE
    params, x = drawn(module, 3, batch, shape)
    ours, folded = FoldedNetwork(module, features=False, shape=shape), FoldedNetwork(module, features=False)
    assert ours._native is not None
    for one, other in ((ours.train, folded.train), (ours, folded)):
        logits, wanted = one(params, {}, x).logits, other(params, {}, x).logits
        torch.testing.assert_close(logits, wanted, rtol=1e-12, atol=1e-12)
        grads, exact = (torch.autograd.grad(out.sin().sum(), list(params.values())) for out in (logits, wanted))
        for grad, right in zip(grads, exact, strict=True):
            torch.testing.assert_close(grad, right, rtol=1e-11, atol=1e-11)
    with torch.no_grad():
        torch.testing.assert_close(ours(params, {}, x).logits, wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("module", NETWORKS.values(), ids=NETWORKS)
def test_a_step_in_place_is_one_along_the_gradient(module: nn.Module) -> None:
    shape = (3, 12, 13) if isinstance(module, LeNet5) else SHAPE
    params, x = drawn(module, 4, 5, shape)
    network, factors = native(module, shape), list[Step]()
    grads = torch.autograd.grad(network(params, {}, x, None).logits.sin().sum(), list(params.values()))
    wanted = [weight.detach().clone() for weight in params.values()]
    pull = {name: torch.linspace(-1, 1, tensor[0].numel()).view_as(tensor[0]) for name, tensor in params.items()}
    for weight, grad, term in zip(wanted, grads, pull.values(), strict=True):
        weight[1::2] -= 0.3 * (grad[1::2] + term)
    none = torch.autograd.grad(
        network(params, {}, x, None, factors).logits.sin().sum(), list(params.values()), allow_unused=True
    )
    assert none == (None,) * len(params)
    with torch.no_grad():  # the second of two runs
        factors[0].take(slice(1, None, 2), 0.3, pull)
        factors[0].take(slice(1, None, 2), 0.0, pull)
    for weight, right in zip(params.values(), wanted, strict=True):
        torch.testing.assert_close(weight.detach(), right, rtol=1e-14, atol=1e-14)


def test_second_derivatives() -> None:
    module = NETWORKS["paddings and windows"]
    params, x = drawn(module, 2, 3, SHAPE)
    found = []
    for network in (FoldedNetwork(module, False, shape=SHAPE), FoldedNetwork(module, False)):
        loss = network.train(params, {}, x).logits.sin().sum()
        first = torch.autograd.grad(loss, list(params.values()), create_graph=True)
        found.append(torch.autograd.grad(sum(grad.square().sum() for grad in first), list(params.values())))
    for ours, wanted in zip(*found, strict=True):
        torch.testing.assert_close(ours, wanted, rtol=1e-10, atol=1e-10)


def test_no_step_in_place_on_copies_of_the_weights() -> None:
    module = nn.Sequential(nn.Linear(3, 4))
    weights = {"0.weight": torch.randn(2, 3, 4).transpose(1, 2).requires_grad_(), "0.bias": torch.randn(2, 4)}
    factors = list[Step]()
    out = native(module, (3,))(weights, {}, torch.randn(2, 5, 3), None, factors).logits
    (grad,) = torch.autograd.grad(out.sum(), [weights["0.weight"]])
    assert grad.shape == (2, 4, 3)
    assert factors == []


def test_a_frozen_layer_does_not_change() -> None:
    module = NETWORKS["mlp"]
    params, x = drawn(module, 2, 5, SHAPE)
    frozen = {name: params.pop(name).detach() for name in ("hidden.2.weight", "hidden.2.bias")}
    before, factors = {name: tensor.clone() for name, tensor in frozen.items()}, list[Step]()
    native(module)(params, frozen, x, None, factors).logits.sum().backward()
    with torch.no_grad():
        factors[0].take(slice(None), 0.5, None)
    assert furthest(frozen, before) == 0.0


def test_results_depend_neither_on_threads_nor_on_other_clients() -> None:
    module, shape = NETWORKS["lenet5"], (3, 12, 13)
    params, x = drawn(module, 5, 80, shape)
    network, found = native(module, shape), []
    try:
        for threads, clients in ((1, slice(None)), (3, slice(None)), (2, slice(2, 3))):
            torch.set_num_threads(threads)
            own = {name: tensor.detach()[clients].float().requires_grad_() for name, tensor in params.items()}
            logits = network(own, {}, x[clients].float(), None).logits
            with torch.no_grad():
                alone = network(own, {}, x[clients].float(), None).logits  # several tasks for each client
            grads = torch.autograd.grad(logits.sin().sum(), list(own.values()))
            found.append([tensor[2 if clients == slice(None) else 0] for tensor in (logits, alone, *grads)])
    finally:
        torch.set_num_threads(1)
    for tensors in zip(*found, strict=True):
        assert all(torch.equal(tensors[0], other) for other in tensors[1:])
    assert torch.equal(found[0][0], found[0][1])


@pytest.mark.parametrize("kind", [nn.Tanh, nn.Sigmoid, nn.ELU, nn.ReLU])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_activations(kind: type[nn.Module], dtype: torch.dtype) -> None:
    module = nn.Sequential(nn.Linear(1, 1, bias=False), kind(), nn.Linear(1, 1, bias=False))
    weights = {name: torch.ones(1, 1, 1, dtype=dtype) for name, _ in module.named_parameters()}
    x = torch.cat([torch.linspace(-30, 30, 601), torch.tensor([-1e4, 1e4, -torch.inf, torch.inf, torch.nan, 0.0])])
    x = x.to(dtype)[None, :, None]
    out, exact = native(module, (1,))(weights, {}, x, None).logits, module[1](x.double()).to(dtype)
    torch.testing.assert_close(out, exact, rtol=3e-7 if dtype == torch.float32 else 1e-14, atol=3e-7, equal_nan=True)
    if dtype == torch.float64:
        torch.testing.assert_close(out, exact, rtol=1e-14, atol=1e-15, equal_nan=True)


@pytest.mark.parametrize(
    "settings", [{}, {"tau": 0.0, "over": "all"}, {"source": "evaluation", "epsilon1": 0.5, "epsilon2": 2.0}], ids=str
)
@pytest.mark.parametrize(("clients", "batch", "classes"), [(1, 1, 2), (3, 5, 10), (2, 16, 20)])
def test_the_loss_equals_the_objective(settings: dict[str, Any], clients: int, batch: int, classes: int) -> None:
    draw = torch.Generator().manual_seed(0)
    logits = torch.randn(batch, clients, classes, generator=draw, dtype=torch.float64).transpose(0, 1).requires_grad_()
    y = torch.randint(classes, (batch, clients), generator=draw).t()
    real = torch.rand(clients, batch, generator=draw) > 0.3
    mistakes = torch.randint(3, (clients, classes, classes), generator=draw).float()
    carry = {"mistakes": mistakes.clone()}
    if settings.get("tau") != 0.0:
        carry["shift"] = torch.randn(clients, classes, generator=draw, dtype=torch.float64)
    pull, found = torch.randn(clients, batch, generator=draw, dtype=torch.float64), []
    method = algorithms.build({"name": "fedsat", "objective": {"name": "psl", **settings}})
    for objective in (quick(method, CompiledSensitiveLoss).objective, method.objective):
        losses, after = objective.loss(carry, Outputs(logits), Batch(y, y, real))
        found.append([losses, after["mistakes"], *torch.autograd.grad(losses, logits, pull)])
    for ours, wanted in zip(*found, strict=True):
        torch.testing.assert_close(ours, wanted, rtol=1e-13, atol=1e-13)
    assert torch.equal(carry["mistakes"], mistakes)


def test_gathering() -> None:
    dataset, indices = image_dataset(), torch.tensor([7, 0, 119, 7] * 9)[::2]
    for dtype in (torch.float32, torch.float64):
        ours, plain = (
            Examples(dataset.train, dataset, torch.device("cpu"), dtype, compiles=compiles).inputs(indices)
            for compiles in (True, False)
        )
        torch.testing.assert_close(ours, plain, rtol=0, atol=5e-7 if dtype == torch.float32 else 1e-15)


@pytest.mark.parametrize("module", OTHERS.values(), ids=OTHERS)
def test_other_modules_are_folded(module: nn.Module) -> None:
    assert NativeNetwork.of(module, SHAPE) is None


def compiled(module: nn.Module, federation: Any, algorithm: Any, *rest: Any, **options: Any) -> StackedEngine:
    network = FoldedNetwork(module, algorithm.uses_features, shape=federation.dataset.input_shape)
    assert (network.compiler is None) == algorithm.uses_features
    return StackedEngine(network, module, federation, algorithm, *rest, **options)


@pytest.mark.parametrize("model", ["mlp", "lenet5"])
@pytest.mark.parametrize("algorithm", list(algorithms))
def test_every_method_equals_the_sequential_engine(algorithm: str, model: str) -> None:
    options: dict[str, Any] = {
        "model": model, "dataset": image_dataset(), "partition": {"name": "quantity", "beta": 0.5}, "clients": 9,
        "epochs": 1, "batch_size": 5, "lr": 0.05,
    }  # fmt: skip
    one, first = run_rounds(make_engine(algorithms.build(algorithm), **options), 2)
    many, second = run_rounds(make_engine(algorithms.build(algorithm), engine=compiled, lanes=3, **options), 2)
    assert furthest(one.server.model.params, many.server.model.params) < 1e-9
    for left, right in zip(first, second, strict=True):
        torch.testing.assert_close(left.client_weights.weights, right.client_weights.weights, rtol=0, atol=1e-9)
        torch.testing.assert_close(left.losses, right.losses, rtol=0, atol=1e-5)


@pytest.mark.parametrize("rate", [0.0, 1e-46])  # 1e-46 is 0 in float32
def test_a_rate_of_zero_takes_no_step(rate: float) -> None:
    module = nn.Sequential(nn.Linear(6, 4))
    network = NativeNetwork.of(module, (6,))
    assert network is not None
    params = {name: tensor.detach()[None].clone().requires_grad_() for name, tensor in module.named_parameters()}
    before, factors = tree_map(torch.clone, params), list[Any]()
    network(params, {}, torch.randn(1, 3, 6), None, factors).logits.sum().backward()  # type: ignore[no-untyped-call]
    with torch.no_grad():
        factors[0].take(slice(None), rate, None)
    assert all(torch.equal(params[name], before[name]) for name in params)


def test_more_compiled_runs_pay_in_one_stack() -> None:
    given = 64, 2, 200_000, torch.device("cpu")
    assert (runs_that_pay(*given), runs_that_pay(*given, compiled=True)) == (3, 10)


SMALL: dict[str, Any] = {
    "dataset": "mnist-mini", "clients": 20, "per_round": 2, "workers": 1, "rounds": 1, "epochs": 1, "device": "cpu",
}  # fmt: skip


def test_the_record_says_whether_a_network_was_compiled(tmp_path: Path) -> None:
    for name in ("auto", "off"):
        fedsat.run(**SMALL, compile=name, out=tmp_path / name)
    found = [fedsat.load(tmp_path / name).summary["made_with"]["compiler"] for name in ("auto", "off")]
    compiled = library(torch.float32)
    assert compiled is not None
    assert found == [compiled.compiler, None]


def test_without_a_compiler_torch_computes(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    with caplog.at_level(logging.DEBUG):
        assert library.__wrapped__(torch.float32) is None
    assert "no-such-compiler" in caplog.text


def test_it_is_compiled_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(compiling, "user_cache_path", lambda *_, **__: tmp_path)
    monkeypatch.setattr(compiling, "FLAGS", ("-std=gnu11", "-O0", "-shared", "-fPIC"))
    commands: list[list[str]] = []
    run = compiling._output
    monkeypatch.setattr(compiling, "_output", lambda command: commands.append(command) or run(command))
    for _ in range(2):
        assert library.__wrapped__(torch.float64) is not None
    assert [command[1] for command in commands].count("--version") == 2
    assert len(commands) == 3


def test_a_library_that_others_may_change_is_not_loaded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(compiling, "user_cache_path", lambda *_, **__: tmp_path)
    find = library.__wrapped__
    assert find(torch.float32) is not None
    (tmp_path / "compiled").chmod(0o777)
    assert find(torch.float32) is None
