"""A network whose convolutions include what follows them returns what the folded module returns."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedsat.algorithms import Model
from fedsat.engine import evaluate
from fedsat.engine.evaluate import Counter, GraphedCounter
from fedsat.engine.examples import Examples
from fedsat.engine.fold import FoldedNetwork, fold
from fedsat.engine.fused import FusedNetwork, Pair
from fedsat.engine.kernels import fused as kernels
from fedsat.engine.network import Aside
from fedsat.models import BatchNormRelu, build_model
from tests.support.federations import image_dataset

SHAPE = (3, 8, 8)


class Residual(nn.Module):
    """A residual block of torch's own layers."""

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3, 2, 1), nn.BatchNorm2d(4, affine=False)
        self.across, self.other = nn.Conv2d(3, 4, 1, 2, bias=False), nn.BatchNorm2d(4)
        self.relu = nn.ReLU(inplace)

    def forward(self, x: Tensor) -> Tensor:
        return self.relu(self.norm(self.conv(x)) + self.other(self.across(x))).flatten(1)  # type: ignore[no-any-return]


class Reused(nn.Module):
    """Two norms of the same convolution: the second one reads it after the first, so neither can be part of it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.one, self.two = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.BatchNorm2d(4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        return (self.one(x) * self.two(x)).flatten(1)  # type: ignore[no-any-return]


class Changed(nn.Module):
    """Changes the convolution's input in place between the convolution and ReLU."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)

    def forward(self, x: Tensor) -> Tensor:
        x = x * 1.0
        out = self.norm(self.conv(x))
        x.mul_(2)
        return functional.relu(out).flatten(1) * x.sum()


def weights(module: nn.Module) -> Model:
    """Return random weights with a client axis of length one."""
    draw = torch.Generator().manual_seed(1)

    def drawn(tensor: Tensor) -> Tensor:
        if not tensor.is_floating_point():
            return tensor.unsqueeze(0)
        return 0.1 + torch.rand(1, *tensor.shape, generator=draw, dtype=torch.float64)

    params = {name: drawn(tensor) - 0.5 for name, tensor in module.named_parameters()}
    return Model(params, {name: drawn(tensor) for name, tensor in module.named_buffers()})


def folded(module: nn.Module) -> nn.Module:
    return fold(module, Aside(), torch.channels_last, training=False)


def plain(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(*layers, nn.Flatten())


@pytest.mark.parametrize(
    ("module", "convolutions"),
    [
        (build_model("resnet8", SHAPE, 5, 0), 9),
        (Residual(), 2),
        (Residual(inplace=True), 2),
        (plain(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3)), 1),
        (plain(nn.Conv2d(3, 4, 3), BatchNormRelu(4), nn.Conv2d(4, 2, 3, bias=False), nn.BatchNorm2d(2)), 2),
    ],
    ids=["resnet8", "residual", "in place", "plain", "built-in"],
)
def test_fused_networks_equal_folded_ones(module: nn.Module, convolutions: int) -> None:
    model, x = weights(module), torch.randn(1, 6, *SHAPE, dtype=torch.float64)
    network = FusedNetwork.of(folded(module), SHAPE, half=False)
    assert network is not None
    assert len(network._pairs) == convolutions
    prepared = network.prepare(model)
    assert not any("running" in name for name in prepared.params)
    wanted = FoldedNetwork(module, features=False)(model.params, model.buffers, x).logits
    assert torch.allclose(network(prepared.params, prepared.buffers, x).logits, wanted, rtol=1e-9)


@pytest.mark.parametrize(
    "module",
    [
        Reused(),
        Changed(),
        plain(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.BatchNorm2d(4)),
        plain(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, track_running_stats=False)),
        plain(nn.Conv2d(3, 6, 3, groups=3), nn.BatchNorm2d(6)),
        build_model({"name": "resnet8", "norm": "group", "width": 16}, SHAPE, 5, 0),
    ],
    ids=["two norms", "in place", "relu first", "no statistics", "grouped", "group norm"],
)
def test_other_networks_are_not_fused(module: nn.Module) -> None:
    assert FusedNetwork.of(folded(module), SHAPE, half=False) is None


def test_a_module_with_hooks_is_not_fused() -> None:
    module = plain(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    module[1].register_forward_hook(lambda *_: None)  # type: ignore[operator, index]
    assert FusedNetwork.of(folded(module), SHAPE, half=False) is None


def test_the_norm_becomes_part_of_the_weights() -> None:
    # γ = 6, σ² + ε = 9, so the scale is 2; w = 5 · 2 = 10 and b = 1 + (7 − 3) · 2 = 9.
    one = {"c.weight": 5.0, "c.bias": 7.0, "n.weight": 6.0, "n.bias": 1.0, "n.running_mean": 3.0, "n.running_var": 8.0}
    given = {name: torch.full((1, 1), value) for name, value in one.items()}
    given["c.weight"] = given["c.weight"].view(1, 1, 1, 1, 1)
    found = Pair("c", "n", 1.0).fused(given, torch.float32)
    assert found["c.weight"].tolist() == [[[[10.0]]]]
    assert found["c.bias"].tolist() == [9.0]


def test_graphs_prepare_each_model_and_select_their_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs are replaced by functions that repeat their work."""
    stream = SimpleNamespace(wait_stream=lambda _: None)
    monkeypatch.setattr(torch.cuda, "Stream", lambda _: stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda _: nullcontext())
    monkeypatch.setattr(evaluate, "captured", lambda work: SimpleNamespace(replay=work))
    dataset = image_dataset()
    module = build_model({"name": "resnet8", "width": 4}, dataset.input_shape, dataset.classes, 0)
    network, examples = (
        FoldedNetwork(module, False),
        Examples(dataset.train, dataset, torch.device("cpu"), torch.double),
    )
    fused = FusedNetwork.of(folded(module), dataset.input_shape, half=False)
    assert fused is not None
    common = network, examples, dataset.classes, 8
    graphed, one = GraphedCounter(*common, fused), Counter(*common)
    models = [weights(module), Model({k: v + 0.1 for k, v in weights(module).params.items()}, weights(module).buffers)]
    draw = torch.Generator().manual_seed(0)
    for model, count in zip([*models, models[0]], [19, 0, 8], strict=True):
        indices = torch.randint(len(examples), (count,), generator=draw)
        owners = torch.randint(3, (count,), generator=draw)
        found, wanted = (counter.count(model, indices, owners, 3) for counter in (graphed, one))
        assert torch.equal(found.counts, wanted.counts)
        assert found.loss == pytest.approx(float(wanted.loss), abs=1e-9)
    both = Model(
        *(
            {k: torch.cat([getattr(m, t)[k] for m in models]) for k in getattr(models[0], t)}
            for t in ("params", "buffers")
        )
    )
    parts = [torch.arange(20), torch.arange(5, 9)]
    each = graphed.count_each(both, parts, [part % 2 for part in parts], 2)
    wanted = torch.stack([one.count(m, part, part % 2, 2).counts for m, part in zip(models, parts, strict=True)])
    assert torch.equal(each, wanted)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(
    ("inputs", "outputs", "kernel", "stride"), [(3, 64, 3, 1), (64, 64, 3, 1), (20, 130, 3, 2), (64, 128, 1, 2)]
)
@pytest.mark.parametrize("added", [False, True])
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("way", ["by_triton", "by_cudnn"])
@pytest.mark.parametrize(("kind", "tolerance"), [(torch.bfloat16, 1e-2), (torch.float32, 1e-5)], ids=str)
def test_kernels_equal_torch(
    kind: torch.dtype,
    tolerance: float,
    way: str,
    relu: bool,
    added: bool,
    inputs: int,
    outputs: int,
    kernel: int,
    stride: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if way == "by_cudnn" and not (added and relu):
        pytest.skip("cuDNN's kernel has a shortcut and ReLU")
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    options = {"device": "cuda", "generator": torch.Generator("cuda").manual_seed(0)}
    x = torch.randn(5, inputs, 9, 9, **options).to(kind).contiguous(memory_format=torch.channels_last)
    weight = 0.1 * torch.randn(outputs, inputs, kernel, kernel, **options)
    weight = weight.to(kind).contiguous(memory_format=torch.channels_last)
    bias = torch.randn(outputs, **options)
    geometry = stride, kernel // 2
    wanted = functional.conv2d(x.double(), weight.double(), bias.double(), *geometry)
    shape = wanted.shape if stride == 1 else (*wanted.shape[:2], 1, 1)  # a value per channel is a shortcut too
    shortcut = torch.randn(shape, **options).to(kind) if added else None
    wanted = wanted if shortcut is None else wanted + shortcut.double()
    wanted = wanted.relu() if relu else wanted
    monkeypatch.setattr(kernels, "CUDNN", way == "by_cudnn")
    found = kernels.convolution(x, weight, bias, shortcut, relu, *geometry)
    assert (found.double() - wanted).norm() < tolerance * wanted.norm()
    assert found.is_contiguous(memory_format=torch.channels_last)
