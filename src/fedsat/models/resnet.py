"""Residual networks for small images: ResNet-8 and ResNet-18 (He et al. 2016)."""

from __future__ import annotations

from typing import Annotated, Literal

from torch import Tensor, nn

from fedsat.models.norms import BatchNormRelu, GroupNormRelu
from fedsat.models.registry import Projection, classifier, image_shape, models
from fedsat.options import Option

Norm = Annotated[
    Literal["batch", "group"], Option("normalisation: BatchNorm (paper), or GroupNorm, which has no running statistics")
]
Width = Annotated[int, Option("channels of the first stage; each later stage doubles them", at_least=1)]


def normalisation(kind: str, channels: int, *, relu: bool = True) -> nn.Module:
    """Return BatchNorm, or GroupNorm with 16 channels per group if they divide evenly; optionally followed by ReLU."""
    if kind == "batch":
        return BatchNormRelu(channels) if relu else nn.BatchNorm2d(channels)
    groups = channels // 16 if channels % 16 == 0 else 1
    return GroupNormRelu(groups, channels) if relu else nn.GroupNorm(groups, channels)


class ResidualBlock(nn.Module):
    """Two 3×3 convolutions with a shortcut, projected by 1×1 where the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int, norm: str) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.norm1 = normalisation(norm, outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = normalisation(norm, outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), normalisation(norm, outputs, relu=False)
            )

    def forward(self, x: Tensor) -> Tensor:
        """Return relu(shortcut(x) + f(x))."""
        result: Tensor = self.norm2(self.conv2(self.norm1(self.conv1(x))), self.shortcut(x))
        return result


class ResNet(nn.Module):
    """A stem, stages of residual blocks that double the channels and halve the image, global average pooling."""

    def __init__(
        self, stem: nn.Module, width: int, blocks: tuple[int, ...], classes: int, norm: str, projection: int
    ) -> None:
        super().__init__()
        self.stem = stem
        stages: list[nn.Module] = []
        inputs = width
        for stage, count in enumerate(blocks):
            outputs = width * 2**stage
            for index in range(count):
                stride = 2 if stage > 0 and index == 0 else 1
                stages.append(ResidualBlock(inputs, outputs, stride, norm))
                inputs = outputs
        self.stages = nn.Sequential(*stages)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classifier = classifier(inputs, classes, projection)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of a batch."""
        logits: Tensor = self.classifier(self.pool(self.stages(self.stem(x))).flatten(1))
        return logits


def small_stem(channels: int, width: int, norm: str) -> nn.Module:
    """Return a 3×3 convolution that keeps the image's size."""
    return nn.Sequential(nn.Conv2d(channels, width, 3, padding=1, bias=False), normalisation(norm, width))


@models.register("resnet8")
class ResNet8(ResNet):
    """3×3 stem and three residual blocks, 64-128-256 channels by default."""

    def __init__(
        self,
        input_shape: tuple[int, ...],
        classes: int,
        *,
        width: Width = 64,
        norm: Norm = "batch",
        projection: Projection = 0,
    ) -> None:
        channels = image_shape(input_shape, "resnet8")[0]
        super().__init__(small_stem(channels, width, norm), width, (1, 1, 1), classes, norm, projection)


@models.register("resnet18")
class ResNet18(ResNet):
    """Four stages of two residual blocks, 64-128-256-512 channels by default."""

    def __init__(
        self,
        input_shape: tuple[int, ...],
        classes: int,
        *,
        width: Width = 64,
        norm: Norm = "batch",
        stem: Annotated[
            Literal["cifar", "imagenet"],
            Option("first layer: 3×3 convolution, or 7×7 with pooling as described in the paper"),
        ] = "cifar",
        projection: Projection = 0,
    ) -> None:
        channels = image_shape(input_shape, "resnet18")[0]
        first = small_stem(channels, width, norm)
        if stem == "imagenet":
            first = nn.Sequential(
                nn.Conv2d(channels, width, 7, stride=2, padding=3, bias=False),
                normalisation(norm, width),
                nn.MaxPool2d(3, stride=2, padding=1),
            )
        super().__init__(first, width, (2, 2, 2, 2), classes, norm, projection)
