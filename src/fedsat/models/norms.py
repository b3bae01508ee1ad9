"""Normalisations with the ReLU, and the sum with a shortcut before it, that follow them in residual networks.

They are what the plain layers one after another are. As one layer they are faster on a GPU, where the stacked engine
goes over the activations once for all three; use them in networks of your own.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional


class BatchNormRelu(nn.BatchNorm2d):
    """relu(BatchNorm2d(x) + shortcut)."""

    def forward(self, input: Tensor, shortcut: Tensor | None = None) -> Tensor:
        """Without a shortcut, relu(BatchNorm2d(x))."""
        return rectified(super().forward(input), shortcut)


class GroupNormRelu(nn.GroupNorm):
    """relu(GroupNorm(x) + shortcut)."""

    def forward(self, input: Tensor, shortcut: Tensor | None = None) -> Tensor:
        """Without a shortcut, relu(GroupNorm(x))."""
        return rectified(super().forward(input), shortcut)


def rectified(x: Tensor, shortcut: Tensor | None) -> Tensor:
    """relu(x + shortcut)."""
    return functional.relu(x if shortcut is None else x + shortcut)
