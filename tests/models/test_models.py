"""Shapes and parameter counts of the models, by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedsat.errors import UsageError
from fedsat.models import BatchNormRelu, GroupNormRelu, build_model

MNIST, CIFAR = (1, 28, 28), (3, 32, 32)


def resnet8(width: int, classes: int) -> int:
    """Stem, three blocks of two 3×3 convolutions, two 1×1 shortcuts, BatchNorm's two numbers a channel."""
    a, b, c = width, 2 * width, 4 * width
    stem = 3 * a * 9 + 2 * a
    first = 2 * (a * a * 9 + 2 * a)
    second = a * b * 9 + b * b * 9 + a * b + 3 * 2 * b
    third = b * c * 9 + c * c * 9 + b * c + 3 * 2 * c
    return stem + first + second + third + c * classes + classes


@pytest.mark.parametrize(
    ("spec", "shape", "classes", "parameters"),
    [
        ("mlp", MNIST, 10, 784 * 80 + 80 + 80 * 60 + 60 + 60 * 10 + 10),
        ({"name": "mlp", "hidden": []}, (7,), 3, 7 * 3 + 3),
        ("tabular", (35,), 2, 35 * 32 + (32 * 64 + 64) + (64 * 32 + 32) + 32 * 2 + 2),
        ({"name": "tabular", "embedding": 4, "hidden": []}, (7,), 3, 7 * 4 + 4 * 3 + 3),
        ("lenet5", MNIST, 10, 61_706),  # the published count
        ("lenet5", CIFAR, 10, 62_006),
        ("resnet8", CIFAR, 10, resnet8(64, 10)),
        ({"name": "resnet8", "width": 16}, CIFAR, 100, resnet8(16, 100)),
        ("resnet18", CIFAR, 10, 11_173_962),  # the published count of the CIFAR form
        ({"name": "resnet18", "stem": "imagenet"}, CIFAR, 10, 11_181_642),
    ],
)
def test_parameters_and_output(spec: Any, shape: tuple[int, ...], classes: int, parameters: int) -> None:
    model = build_model(spec, shape, classes, seed=0)
    assert sum(p.numel() for p in model.parameters()) == parameters
    assert model(torch.randn(2, *shape)).shape == (2, classes)


def test_group_norm_has_no_buffers() -> None:
    assert not list(build_model({"name": "resnet8", "width": 16, "norm": "group"}, CIFAR, 10, 0).buffers())
    assert list(build_model({"name": "resnet8", "width": 16}, CIFAR, 10, 0).buffers())


def test_initial_weights_follow_the_seed_and_leave_torchs_generator_alone() -> None:
    before = torch.random.get_rng_state()
    first, again, other = (build_model("mlp", MNIST, 10, seed) for seed in (0, 0, 1))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(first.classifier.weight, again.classifier.weight)
    assert not torch.equal(first.classifier.weight, other.classifier.weight)


class Own(nn.Module):
    """A user's network, with an option and the data's shape."""

    def __init__(self, input_shape, num_classes, slope=0.1):  # type: ignore[no-untyped-def]
        super().__init__()
        self.layer = nn.Linear(input_shape[0], num_classes)
        self.slope = slope

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.leaky_relu(self.layer(x), self.slope)


class Small(nn.Linear):
    """Takes five numbers, returns two."""

    def __init__(self) -> None:
        super().__init__(5, 2)


def test_a_users_module() -> None:
    model = build_model({"name": f"{__name__}:Own", "slope": 0.3}, (4,), 2, 0)
    assert isinstance(model, Own)
    assert model.slope == 0.3
    assert model(torch.randn(5, 4)).shape == (5, 2)


@pytest.mark.parametrize(
    ("spec", "shape", "message"),
    [
        ("resnet9", CIFAR, "did you mean 'resnet"),
        ({"name": "resnet8", "width": 0}, CIFAR, "at least 1"),
        ({"name": "resnet8", "depth": 3}, CIFAR, "unknown option of model 'resnet8': 'depth'"),
        ({"name": "resnet8", "norm": "bach"}, CIFAR, "did you mean 'batch'"),
        ("lenet5", (5,), "needs images"),
        ("lenet5", (1, 8, 8), "at least 12"),
        ("nowhere:Net", CIFAR, "cannot import 'nowhere'"),
        (f"{__name__}:Owm", CIFAR, "did you mean 'Own'"),
        ("builtins:dict", CIFAR, "it is not a Module"),
        (":Net", CIFAR, "cannot import ''"),
        (f"{__name__}:Small", CIFAR, "does not accept samples of shape"),
        (f"{__name__}:Own", (4, 4), "one logit per class"),
    ],
)
def test_bad_models_are_refused(spec: Any, shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        build_model(spec, shape, 10, 0)


@pytest.mark.parametrize(
    ("joined", "plain"), [(BatchNormRelu(4), nn.BatchNorm2d(4)), (GroupNormRelu(2, 4), nn.GroupNorm(2, 4))]
)
def test_norms_with_what_follows(joined: nn.Module, plain: nn.Module) -> None:
    x, shortcut = torch.randn(2, 5, 4, 3, 3, generator=torch.Generator().manual_seed(0))
    assert torch.equal(joined(x), plain(x).relu())
    assert torch.equal(joined(x, shortcut), (plain(x) + shortcut).relu())
