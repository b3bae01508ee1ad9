"""The samples of a dataset on the device, normalised and augmented batch by batch."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from fedsat.data import Dataset, Split
from fedsat.engine.native.library import Library, library

PAD = 4
"""Pixels added on each side before a random crop."""


class Examples:
    """The samples of a split, gathered by index and normalised by the training set's mean and standard deviation."""

    def __init__(
        self, split: Split, dataset: Dataset, device: torch.device, dtype: torch.dtype, *, compiles: bool = False
    ) -> None:
        self.images = torch.from_numpy(split.images).to(device)
        self.labels = torch.from_numpy(split.labels).to(device)
        self._factor, self._shift = scaling(dataset.mean, dataset.std, self.images, dtype)
        self._dtype = dtype
        pictures = self.images.dtype == torch.uint8 and self.images.dim() == 4 and self.images.is_contiguous()
        self._compiled = library(dtype) if compiles and pictures else None

    def __len__(self) -> int:
        return len(self.labels)

    def equal(self, other: Examples) -> bool:
        """Whether the other examples are the same samples, normalised in the same way."""
        mine, theirs = ((one.images, one.labels, one._factor, one._shift) for one in (self, other))
        return all(map(torch.equal, mine, theirs))

    def inputs(self, indices: Tensor, crops: Tensor | None = None) -> Tensor:
        """Return the normalised inputs at `indices`, [n, …], cropped and flipped if `crops` [n, 3] is given."""
        if crops is None and self._compiled is not None:
            return self._gathered(self._compiled, indices)
        images = self.images.index_select(0, indices)  # much faster on a CPU than [indices]
        if crops is not None:
            images = crop_and_flip(images, crops)
        return images.to(self._dtype).mul_(self._factor).add_(self._shift)

    def _gathered(self, compiled: Library, indices: Tensor) -> Tensor:
        """Return the normalised inputs in one pass."""
        count, (channels, *sides) = len(indices), self.images.shape[1:]
        out = torch.empty(count, channels, *sides, dtype=self._dtype)
        indices = indices.contiguous()
        factor, shift = (each.flatten().expand(channels).contiguous() for each in (self._factor, self._shift))
        pointers = (tensor.data_ptr() for tensor in (self.images, indices, factor, shift, out))
        compiled.run("gather", *pointers, count, channels, math.prod(sides))
        return out


def scaling(mean: Sequence[float], std: Sequence[float], samples: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return the factor and the shift that normalise samples [n, …]; uint8 is scaled to [0, 1] first."""
    scale = 255.0 if samples.dtype == torch.uint8 else 1.0
    axes = [1] * (samples.dim() - 2)
    centre = torch.as_tensor(mean, dtype=dtype, device=samples.device).view(-1, *axes)
    deviation = torch.as_tensor(std, dtype=dtype, device=samples.device).view(-1, *axes)
    return 1 / (scale * deviation), -centre / deviation


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
