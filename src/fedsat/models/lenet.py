"""LeNet-5: two 5×5 convolutions, tanh, average pooling, 120-84 fully connected."""

from __future__ import annotations

from torch import Tensor, nn

from fedsat.errors import UsageError
from fedsat.models.registry import Projection, classifier, image_shape, models


@models.register("lenet5")
class LeNet5(nn.Module):
    """LeNet-5 (LeCun et al. 1998): 5×5 convolutions with 6 and 16 channels, tanh, average pooling."""

    def __init__(self, input_shape: tuple[int, ...], classes: int, *, projection: Projection = 0) -> None:
        super().__init__()
        channels, height, width = image_shape(input_shape, "lenet5")
        padding = 2 if min(height, width) <= 28 else 0  # the original pads MNIST's 28×28 digits to 32×32
        side_h, side_w = ((((side + 2 * padding - 4) // 2) - 4) // 2 for side in (height, width))
        if min(side_h, side_w) < 1:
            raise UsageError(f"lenet5 needs images of at least 12×12, not {height}×{width}")
        self.features = nn.Sequential(
            nn.Conv2d(channels, 6, 5, padding=padding),
            nn.Tanh(),
            nn.AvgPool2d(2),
            nn.Conv2d(6, 16, 5),
            nn.Tanh(),
            nn.AvgPool2d(2),
        )
        self.hidden = nn.Sequential(nn.Linear(16 * side_h * side_w, 120), nn.Tanh(), nn.Linear(120, 84), nn.Tanh())
        self.classifier = classifier(84, classes, projection)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of a batch."""
        logits: Tensor = self.classifier(self.hidden(self.features(x).flatten(1)))
        return logits
