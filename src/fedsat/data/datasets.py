"""What a dataset is, and loading one by name or from a folder of the user's own."""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsat.data import cache
from fedsat.data.builtin import FILE
from fedsat.data.catalog import DATASETS, Arrays, info
from fedsat.errors import DataError, UsageError
from fedsat.seeding import Indices

Floats = NDArray[np.float64]
Moments = tuple[tuple[float, ...], tuple[float, ...]]
"""Mean and deviation of each channel."""

CHUNK = 2048
"""Images looked at together for statistics, so that memory stays small."""


@dataclass(frozen=True, eq=False)
class Split:
    """Samples and their labels.

    `images` are uint8 [N, C, H, W], or float32 of any shape [N, ...] for a user's own data; `labels` are
    int64 from 0 upwards.
    """

    images: NDArray[Any]
    labels: Indices

    def __post_init__(self) -> None:
        object.__setattr__(self, "labels", whole_labels(self.labels, "labels"))
        if self.images.ndim < 2 or self.images.dtype not in (np.uint8, np.float32):
            raise DataError(f"images are {self.images.dtype} {list(self.images.shape)}; see docs/howto/data.md")
        if self.images.dtype == np.uint8 and self.images.ndim != 4:
            raise DataError(f"uint8 images need the shape [N, C, H, W], not {list(self.images.shape)}")
        if len(self.images) != len(self.labels):
            raise DataError(f"there are {len(self.images):,} images but {len(self.labels):,} labels")
        if not len(self.labels):
            raise DataError("there is not a single sample")
        if self.images.dtype == np.float32 and not np.isfinite(self.images).all():
            bad = np.flatnonzero(~np.isfinite(self.images).reshape(len(self.images), -1).all(axis=1))[0]
            raise DataError(f"image {bad} holds a value that is not finite")

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True, eq=False)
class Dataset:
    """A training set, a test set, and the names of the classes; every class occurs in training."""

    name: str
    train: Split
    test: Split
    class_names: tuple[str, ...]
    note: str = ""
    """What a user should know about it, for example how the test set came about."""
    lacking: bool = False
    """Whether training may lack classes, as one node's share of a federation's data does."""
    agreed: Moments | None = None
    """Mean and deviation to normalise by, where they are not those of this training set but of the federation's."""

    def __post_init__(self) -> None:
        if self.train.images.shape[1:] != self.test.images.shape[1:]:
            shapes = [list(split.images.shape[1:]) for split in (self.train, self.test)]
            raise DataError(f"{self.name}: training images have shape {shapes[0]}, test images {shapes[1]}")
        if self.train.images.dtype != self.test.images.dtype:
            types = [split.images.dtype for split in (self.train, self.test)]
            raise DataError(f"{self.name}: training images are {types[0]}, test images {types[1]}")
        for title, split in (("training", self.train), ("test", self.test)):
            if split.labels.max() >= self.classes:
                raise DataError(
                    f"{self.name}: a {title} label is {split.labels.max()}; with {self.classes} classes"
                    f" labels run from 0 to {self.classes - 1}"
                )
        if self.lacking:
            return
        empty = np.flatnonzero(np.bincount(self.train.labels, minlength=self.classes) == 0)
        if len(empty):
            name = self.class_names[empty[0]]
            raise DataError(
                f"{self.name}: class {name} (label {empty[0]}) has no training sample; number the classes without gaps"
            )

    @property
    def classes(self) -> int:
        """m, the number of classes."""
        return len(self.class_names)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one sample."""
        return self.train.images.shape[1:]

    @property
    def mean(self) -> tuple[float, ...]:
        """The training set's mean of each channel (feature), with uint8 scaled to [0, 1]."""
        return self._moments[0]

    @property
    def std(self) -> tuple[float, ...]:
        """The training set's deviation of each channel (feature); 1 where it is constant."""
        return self._moments[1]

    @cached_property
    def _moments(self) -> Moments:
        if self.agreed is not None:
            return self.agreed
        mean, variance = mean_and_variance(self.train.images)
        return tuple(mean.tolist()), tuple(deviation(mean, variance).tolist())


def mean_and_variance(images: NDArray[Any]) -> tuple[Floats, Floats]:
    """Of each channel (feature), with uint8 scaled to [0, 1]."""
    scale = 255.0 if images.dtype == np.uint8 else 1.0
    axes = (0, *range(2, images.ndim))
    mean = images.mean(axis=axes, dtype=np.float64)
    centre = mean.reshape(-1, *(1 for _ in axes[1:]))
    squares = np.zeros_like(mean)
    for start in range(0, len(images), CHUNK):
        squares += np.square(images[start : start + CHUNK] - centre).sum(axis=axes)
    return mean / scale, squares * (len(mean) / images.size) / scale**2


def deviation(mean: Floats, variance: Floats) -> Floats:
    """What to divide by: the standard deviation, or 1 where a channel is constant up to rounding."""
    std: Floats = np.sqrt(variance)
    std[std <= 1e-10 * np.abs(mean)] = 1.0  # dividing by 1 leaves it at 0
    return std


def whole_labels(labels: NDArray[Any], where: str) -> Indices:
    """`labels` as int64; a `DataError` about `where` unless they are whole numbers from 0 upwards."""
    if labels.ndim != 1 or labels.dtype.kind not in "iufb":
        raise DataError(f"{where}: expected one axis of whole numbers, found {labels.dtype} {list(labels.shape)}")
    wrong = np.flatnonzero(~((labels >= 0) & (labels < 2**31) & (labels == np.floor(labels))))
    if len(wrong):
        raise DataError(f"{where}: label {labels[wrong[0]]} of sample {wrong[0]} is not a whole number from 0 upwards")
    return labels.astype(np.int64)


def load(name: str, *, image_size: int | None = None, seed: int = 0) -> Dataset:
    """A dataset by name (see `DATASETS`), or from a folder of the user's own (see `fedsat.data.folders`).

    `image_size` resizes a user's image files to squares of that size; `seed` decides which samples are held
    out for testing where a user's data has no test set. Neither concerns the named datasets.
    """
    if name not in DATASETS and _is_path(name):
        from fedsat.data import folders  # noqa: PLC0415 (it builds on this module)

        return folders.load_folder(Path(name).expanduser(), image_size=image_size, seed=seed)
    known = info(name)
    if image_size not in (None, known.input_shape[-1]):
        raise UsageError(f"{name} has images of size {known.input_shape[-1]}; image_size is for folders of image files")
    arrays = _builtin(name) if known.builtin else _fetched(name)
    train = Split(arrays.train_images, arrays.train_labels.astype(np.int64))
    test = Split(arrays.test_images, arrays.test_labels.astype(np.int64))
    return Dataset(name, train, test, known.class_names)


def _is_path(name: str) -> bool:
    return "/" in name or "\\" in name or name.startswith((".", "~")) or Path(name).is_dir()


def _fetched(name: str) -> Arrays:
    if not cache.is_cached(name):
        raise DataError(f"{name} has not been fetched yet; run `fedsat data get {name}`")
    return cache.read(name)


def _builtin(name: str) -> Arrays:
    try:
        with FILE.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            arrays = Arrays(*(stored[field] for field in Arrays._fields))
        return info(name).verify(arrays, FILE.name)
    except (DataError, OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise DataError(f"the built-in {name} is damaged ({error}); install fedsat again") from error
