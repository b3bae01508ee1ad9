"""The arrays of a dataset: axes, class labels, and moments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedsat.data.images import is_picture, pixels_of, stack_pictures
from fedsat.errors import DataError, UsageError
from fedsat.seeding import Indices

Floats = NDArray[np.float64]

CHUNK = 2048
"""Images per block when statistics are computed, which keeps memory small."""


def channels_first(images: NDArray[Any], where: str) -> NDArray[Any]:
    """Return images as uint8 or float32, with [N, H, W], [N, H, W, 1|3] and [N, 1|3, H, W] as [N, C, H, W]."""
    if images.ndim < 2 or images.dtype.kind not in "iufb":
        raise DataError(f"{where}: expected numbers [samples, ...], found {images.dtype} {list(images.shape)}")
    if images.ndim == 3:
        images = images[:, None]
    elif images.ndim == 4 and images.shape[1] not in (1, 3) and images.shape[3] in (1, 3):
        images = images.transpose(0, 3, 1, 2)
    if images.dtype == np.uint8 and images.ndim == 4:
        if images.shape[1] not in (1, 3):
            raise DataError(f"{where}: uint8 images need 1 or 3 channels, found shape {list(images.shape)}")
        return np.ascontiguousarray(images)
    with np.errstate(over="ignore"):  # `Split` detects values that overflow: they are not finite
        return np.ascontiguousarray(images, dtype=np.float32)


def samples_of(source: Any, where: str, image_size: int | None = None) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return inputs and labels of a pair (x, y) of arrays or tensors, or of a torch `Dataset` of such pairs.

    Inputs of a torch dataset may be Pillow images, which are resized to squares of `image_size`.
    """
    if isinstance(source, tuple | list) and len(source) == 2:
        x, y = (np.asarray(part) for part in source)
        return channels_first(x, where), y
    if not (hasattr(source, "__getitem__") and hasattr(source, "__len__")):
        raise DataError(f"{where}: expected a pair (x, y) or a torch Dataset with a length, found {type(source)}")
    if not len(source):
        raise DataError(f"{where}: the dataset is empty")
    try:
        pairs = [(x, np.asarray(y)) for x, y in (source[index] for index in range(len(source)))]
        labels = one_label_each(np.stack([y for _, y in pairs]), where)
        if is_picture(pairs[0][0]):
            pictures = [pixels_of(x, image_size, f"{where}, sample {place}") for place, (x, _) in enumerate(pairs)]
            return stack_pictures(pictures, lambda place: f"{where}, sample {place}"), labels
        x = channels_first(np.stack([np.asarray(x) for x, _ in pairs]), where)
    except (TypeError, ValueError, AttributeError) as error:
        raise DataError(
            f"{where}: every sample must be a pair (x, y), and all x must have the same shape: {error}"
        ) from error
    if image_size not in (None, x.shape[-1]):
        raise UsageError(f"{where} holds arrays, not images, so image_size cannot resize them")
    return x, labels


def class_names_of(source: Any) -> list[str] | None:
    """Return the class names of a torchvision or MedMNIST dataset, or of a subset of one."""
    while hasattr(source, "dataset"):
        source = source.dataset
    classes = getattr(source, "classes", None)
    info = getattr(source, "info", None)  # of MedMNIST
    if classes is None and isinstance(info, dict) and isinstance(info.get("label"), dict):
        classes = list(info["label"].values())
    if not isinstance(classes, list | tuple) or not all(isinstance(name, str) for name in classes):
        return None
    return list(classes) or None


def one_label_each(labels: NDArray[Any], where: str) -> NDArray[Any]:
    """Return labels [N, 1] as [N]; several labels of a sample are refused."""
    if labels.ndim == 2 and labels.shape[1] == 1:
        return labels[:, 0]
    if labels.ndim == 2:
        raise DataError(f"{where}: every sample has {labels.shape[1]} labels; a class is one label, so choose one")
    return labels


def encode_labels(labels: NDArray[Any], names: Sequence[str] | None, where: str) -> tuple[Indices, tuple[str, ...]]:
    """Return class labels as numbers, and the names of the classes; labels may be numbers or names."""
    if labels.dtype.kind in "USO":
        found = sorted({str(label) for label in labels.tolist()})
        known = {name: number for number, name in enumerate(names or found)}
        strange = [name for name in found if name not in known]
        if strange:
            raise DataError(f"{where}: the label {strange[0]!r} is not a class; the classes are {', '.join(known)}")
        return np.array([known[str(label)] for label in labels.tolist()], np.int64), tuple(known)
    numbers = whole_labels(labels, where)
    return numbers, tuple(names or number_classes(numbers, where))


def number_classes(labels: Indices, where: str) -> list[str]:
    """Return names for classes that have numbers only; numbers must have no gaps."""
    present = np.unique(labels)
    if present[-1] >= len(present):
        gap = np.flatnonzero(present != np.arange(len(present)))[0]
        raise DataError(
            f"{where}: no sample has the label {gap}, but one has {present[-1]}; number the classes without gaps"
        )
    return [str(label) for label in present]


def whole_labels(labels: NDArray[Any], where: str) -> Indices:
    """Return labels as int64, or raise a `DataError` about `where` unless they are whole numbers from 0 upwards."""
    if labels.ndim != 1 or labels.dtype.kind not in "iufb":
        raise DataError(f"{where}: expected one axis of whole numbers, found {labels.dtype} {list(labels.shape)}")
    wrong = np.flatnonzero(~((labels >= 0) & (labels < 2**31) & (labels == np.floor(labels))))
    if len(wrong):
        raise DataError(f"{where}: label {labels[wrong[0]]} of sample {wrong[0]} is not a whole number from 0 upwards")
    return labels.astype(np.int64)


def number_clients(clients: ArrayLike, samples: int, where: str) -> Indices:
    """Return each sample's client as a number; clients are numbered in the order of their sorted names."""
    ids = np.asarray(clients)
    if ids.shape != (samples,):
        raise DataError(f"{where}: expected the client of each of {samples:,} samples, found shape {list(ids.shape)}")
    return np.unique(ids.astype(str) if ids.dtype.kind == "O" else ids, return_inverse=True)[1].astype(np.int64)


def mean_and_variance(images: NDArray[Any]) -> tuple[Floats, Floats]:
    """Return mean and variance of each channel (feature), with uint8 scaled to [0, 1]."""
    scale = 255.0 if images.dtype == np.uint8 else 1.0
    axes = (0, *range(2, images.ndim))
    mean = images.mean(axis=axes, dtype=np.float64)
    centre = mean.reshape(-1, *(1 for _ in axes[1:]))
    squares = np.zeros_like(mean)
    for start in range(0, len(images), CHUNK):
        squares += np.square(images[start : start + CHUNK] - centre).sum(axis=axes)
    return mean / scale, squares * (len(mean) / images.size) / scale**2


def deviation(mean: Floats, variance: Floats) -> Floats:
    """Return the standard deviation, or 1 where a channel is constant up to rounding."""
    std: Floats = np.sqrt(variance)
    std[std <= 1e-10 * np.abs(mean)] = 1.0  # normalising then gives 0
    return std
