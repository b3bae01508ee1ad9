"""The samples of a dataset on the device, normalised and augmented batch by batch."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from fedsat.data import Dataset, Split

PAD = 4
"""Pixels added on each side before a random crop."""


class Examples:
    """The samples of a split, gathered by index and normalised by the training set's mean and standard deviation."""

    def __init__(self, split: Split, dataset: Dataset, device: torch.device, dtype: torch.dtype) -> None:
        self.images = torch.from_numpy(split.images).to(device)
        self.labels = torch.from_numpy(split.labels).to(device)
        scale = 255.0 if self.images.dtype == torch.uint8 else 1.0
        axes = [1] * (self.images.dim() - 2)
        mean = torch.as_tensor(dataset.mean, dtype=dtype, device=device).view(-1, *axes)
        deviation = torch.as_tensor(dataset.std, dtype=dtype, device=device).view(-1, *axes)
        self._factor = 1 / (scale * deviation)
        self._shift = -mean / deviation
        self._dtype = dtype

    def __len__(self) -> int:
        return len(self.labels)

    def inputs(self, indices: Tensor, crops: Tensor | None = None) -> Tensor:
        """Return the normalised inputs at `indices`, [n, …], cropped and flipped if `crops` [n, 3] is given."""
        images = self.images.index_select(0, indices)  # much faster on a CPU than [indices]
        if crops is not None:
            images = crop_and_flip(images, crops)
        return images.to(self._dtype).mul_(self._factor).add_(self._shift)


def crop_and_flip(images: Tensor, crops: Tensor) -> Tensor:
    """Pad with zeros, crop at each image's offset, and mirror (columns of `crops`: down, right, mirror)."""
    height, width = images.shape[-2:]
    padded = functional.pad(images, (PAD, PAD, PAD, PAD))
    rows = torch.arange(height, device=images.device)
    columns = torch.arange(width, device=images.device)
    down, right, mirror = crops.long().unbind(1)
    rows = rows + down[:, None]
    columns = torch.where(mirror[:, None] > 0, columns.flip(0), columns) + right[:, None]
    samples = torch.arange(len(images), device=images.device)[:, None, None]
    return padded[samples, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)
