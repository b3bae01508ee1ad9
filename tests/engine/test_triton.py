"""Triton's convolutions and normalisations equal torch's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedsat.engine.graphs import in_tap_order
from fedsat.engine.network import Aside
from fedsat.engine.norms import FoldedBatchNorm

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def distance(ours: Tensor, wanted: Tensor) -> float:
    """Return the error relative to the norm of the expected value."""
    gap = (ours.detach().double() - wanted.detach().double()).norm()
    return float(gap / wanted.detach().double().norm().clamp(min=1e-9))


@pytest.mark.parametrize(
    ("inputs", "outputs", "kernel", "stride", "padding", "side"),
    [(1, 6, 5, 1, 2, 9), (3, 20, 3, 1, 1, 9), (64, 64, 3, 1, 1, 8), (16, 130, 3, 2, 1, 11), (20, 17, 1, 2, 0, 7)],
)
@pytest.mark.parametrize("clients", [1, 5])
@pytest.mark.parametrize("order", [torch.channels_last, torch.contiguous_format], ids=str)
@pytest.mark.parametrize(("kind", "tolerance"), [(torch.bfloat16, 1e-2), (torch.float32, 1e-6)], ids=str)
def test_convolutions_equal_torch(
    kind: torch.dtype,
    tolerance: float,
    order: torch.memory_format,
    clients: int,
    inputs: int,
    outputs: int,
    kernel: int,
    stride: int,
    padding: int,
    side: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from fedsat.engine.kernels.triton_conv import StackedConvolution  # noqa: PLC0415 (needs Triton)

    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    draw = torch.Generator("cuda").manual_seed(0)
    options = {"device": "cuda", "generator": draw}
    x = torch.randn(4, clients * inputs, side, side, **options).to(kind).requires_grad_()
    weight = (0.1 * torch.randn(clients, outputs, inputs, kernel, kernel, **options)).requires_grad_()
    ours = StackedConvolution.apply(x, weight, stride, padding, kind, order)
    assert ours.is_contiguous(memory_format=order)
    exact = (x.double(), weight.to(kind).double())
    wanted = torch.nn.functional.conv2d(exact[0], exact[1].flatten(0, 1), None, stride, padding, 1, clients)
    pull = torch.randn(wanted.shape, **options).to(kind)
    left = (ours, *torch.autograd.grad(ours, (x, weight), pull))
    right = (wanted, *torch.autograd.grad(wanted, (x, weight), pull.double()))
    assert all(distance(ours, exact) < tolerance for ours, exact in zip(left, right, strict=True))


@pytest.mark.parametrize("rated", [False, True])
@pytest.mark.parametrize("pulled", [False, True])
@pytest.mark.parametrize("place", [slice(None), slice(1, None, 2)], ids=str)
def test_weights_descend_by_the_parts_of_their_gradients(
    place: slice, pulled: bool, rated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedsat.engine.kernels.triton_conv import StackedConvolution  # noqa: PLC0415 (needs Triton)
    from fedsat.engine.kernels.triton_descend import descend  # noqa: PLC0415

    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    options = {"device": "cuda", "generator": torch.Generator("cuda").manual_seed(0)}
    x = torch.randn(4, 5 * 3, 9, 9, **options)
    weight = in_tap_order(torch.randn(5, 20, 3, 3, 3, **options)).requires_grad_()
    pull = in_tap_order(torch.randn(5, 20, 3, 3, 3, **options))[place] if pulled else None
    lr = torch.tensor(0.1, device="cuda") if rated else 0.1
    given = x, weight, 1, 1, torch.float32, torch.channels_last
    out = StackedConvolution.apply(*given)
    (slope,) = torch.autograd.grad(out, weight, out)
    wanted = weight.detach().clone()
    wanted[place] -= 0.1 * (slope[place] if pull is None else slope[place] + pull)
    left: list[Any] = []
    found = torch.autograd.grad(StackedConvolution.apply(*given, left), weight, out, allow_unused=True)
    assert found == (None,)
    (product,) = left
    assert product.weight.data_ptr() == weight.data_ptr()
    descend(weight.detach()[place], product.parts[:, place], pull, lr)
    assert distance(weight, wanted) < 1e-6


@pytest.mark.parametrize(
    ("inputs", "outputs", "kernel", "padding", "height", "width"),
    [(1, 6, 5, 2, 28, 28), (6, 16, 5, 0, 14, 14), (3, 5, 3, 1, 7, 12), (16, 2, 1, 0, 4, 1), (4, 3, 4, 1, 9, 5)],
)
@pytest.mark.parametrize("clients", [1, 2, 15])
@pytest.mark.parametrize("order", [torch.channels_last, torch.contiguous_format], ids=str)
@pytest.mark.parametrize("weights", ["plain", "tap by tap", "shared", "turned"])
def test_small_convolutions_equal_torch(
    weights: str,
    order: torch.memory_format,
    clients: int,
    inputs: int,
    outputs: int,
    kernel: int,
    padding: int,
    height: int,
    width: int,
) -> None:
    from fedsat.engine.kernels.triton_small import SmallConvolution  # noqa: PLC0415 (needs Triton)

    options = {"device": "cuda", "generator": torch.Generator("cuda").manual_seed(0)}
    x = torch.randn(16, clients * inputs, height, width, **options).contiguous(memory_format=order)
    weight = 0.1 * torch.randn(clients, outputs, inputs, kernel, kernel, **options)
    bias = torch.randn(clients, outputs, **options)
    if weights == "tap by tap":  # as stored for graphs
        weight = in_tap_order(weight)
    elif weights == "shared":  # as MOON evaluates the received model for all clients
        weight, bias = (tensor[:1].expand_as(tensor) for tensor in (weight, bias))
    elif weights == "turned":  # as in user modules
        weight = weight.transpose(3, 4)
    given = [tensor.requires_grad_() for tensor in ((x, weight) if weights == "plain" else (x, weight, bias))]
    ours = SmallConvolution.apply(*given, *[None] * (3 - len(given)), padding)
    exact = [tensor.detach().double().requires_grad_() for tensor in given]
    flat = [tensor.flatten(0, 1) for tensor in exact[1:]]
    wanted = torch.nn.functional.conv2d(exact[0], *flat, padding=padding, groups=clients)
    pull = torch.randn(wanted.shape, **options)
    left = (ours, *torch.autograd.grad(ours, given, pull))
    right = (wanted, *torch.autograd.grad(wanted, exact, pull.double()))
    assert all(distance(ours, exact) < 1e-5 for ours, exact in zip(left, right, strict=True))


def written_out(weight: Tensor, bias: Tensor, running: tuple[Tensor, Tensor, Tensor], real: Tensor | None) -> nn.Module:
    """Return the layer's result in float64, which torch computes without our kernels."""
    layer = nn.BatchNorm2d(weight.shape[1], device="cuda", dtype=torch.float64)
    layer.__class__ = FoldedBatchNorm  # type: ignore[assignment]
    layer.aside, layer.order = Aside(real=real), torch.channels_last  # type: ignore[assignment]
    layer.weight, layer.bias = nn.Parameter(weight.detach().double()), nn.Parameter(bias.detach().double())
    layer.running_mean, layer.running_var = running[0].double(), running[1].double()
    layer.num_batches_tracked = running[2].clone()
    return layer


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("added", [False, True])
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize(
    ("clients", "features", "batch", "side"), [(4, 20, 5, 6), (2, 64, 16, 32), (1, 130, 4, 3), (2, 16, 3, 1)]
)
@pytest.mark.parametrize(("kind", "tolerance"), [(torch.bfloat16, 1e-2), (torch.float32, 1e-5)], ids=str)
def test_norms_equal_torch(
    kind: torch.dtype,
    tolerance: float,
    clients: int,
    features: int,
    batch: int,
    side: int,
    relu: bool,
    added: bool,
    masked: bool,
) -> None:
    from fedsat.engine.kernels.triton_norm import StackedNorm, normalise  # noqa: PLC0415 (needs Triton)

    draw = torch.Generator("cuda").manual_seed(0)
    options = {"device": "cuda", "generator": draw}
    shape = (batch, clients * features, side, side)
    x = (2 * torch.randn(shape, **options) + 3).to(kind).requires_grad_()
    shortcut = torch.randn(shape, **options).to(kind).requires_grad_() if added else None
    weight, bias = (torch.randn(clients, features, **options).requires_grad_() for _ in range(2))
    counts = torch.tensor([max(0, batch - 2 * client) for client in range(clients)], device="cuda")  # also 1, also 0
    real = torch.arange(batch, device="cuda") < counts[:, None] if masked else None
    running = (
        torch.randn(clients, features, **options),
        torch.rand(clients, features, **options) + 0.5,
        torch.zeros(clients, dtype=torch.int64, device="cuda"),
    )
    layer = written_out(weight, bias, running, real)
    exact = [None if tensor is None else tensor.detach().double().requires_grad_() for tensor in (x, shortcut)]

    def followed(normal: Tensor) -> Tensor:
        normal = normal if exact[1] is None else normal + exact[1]
        return normal.relu() if relu else normal

    ours = StackedNorm.apply(x, weight, bias, shortcut, relu, real, running, 0.1, 1e-5)
    wanted = followed(layer(exact[0]))
    pull = torch.randn(shape, **options).to(kind)
    if real is not None:  # padding has no gradient
        pull = pull * real.t().repeat_interleave(features, 1)[..., None, None]
    inputs = [tensor for tensor in (x, weight, bias, shortcut) if tensor is not None]
    leaves = [tensor for tensor in (exact[0], layer.weight, layer.bias, exact[1]) if tensor is not None]
    left = (ours, *torch.autograd.grad(ours, inputs, pull), *running[:2])
    right = (wanted, *torch.autograd.grad(wanted, leaves, pull.double()), layer.running_mean, layer.running_var)
    assert all(distance(ours, exact) < tolerance for ours, exact in zip(left, right, strict=True))
    assert torch.equal(running[2], layer.num_batches_tracked)
    with torch.no_grad():
        evaluated = normalise(x, weight, bias, shortcut, relu, running[:2], 1e-5)
        assert distance(evaluated, followed(layer.eval()(exact[0]))) < tolerance
