"""A model: a small convolutional network with GroupNorm, of any width.

fedsat run --model model:SmallNet --set width=8
"""

from typing import Annotated

from torch import Tensor, nn

from fedsat.options import Option


class SmallNet(nn.Module):
    """Two convolutions with GroupNorm, and a linear classifier."""

    def __init__(
        self,
        input_shape: tuple[int, ...],
        classes: int,
        width: Annotated[int, Option("channels of the first convolution, a multiple of 4", at_least=4)] = 16,
    ) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(input_shape[0], width, 3, stride=2, padding=1),
            nn.GroupNorm(4, width),
            nn.ReLU(),
            nn.Conv2d(width, 2 * width, 3, stride=2, padding=1),
            nn.GroupNorm(4, 2 * width),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(4),
            nn.Flatten(1),
        )
        self.classifier = nn.Linear(32 * width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits, [B, classes]."""
        logits: Tensor = self.classifier(self.body(x))
        return logits
