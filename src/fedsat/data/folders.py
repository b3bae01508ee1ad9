"""A user's own data: arrays in .npy files, or a folder of image files for each class."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsat.data.datasets import Dataset, Split, whole_labels
from fedsat.data.npy import read_npy
from fedsat.errors import DataError, UsageError
from fedsat.seeding import Indices, generator

HELD_OUT = 6
"""One sample in so many is held out for testing where there is no test set, as in MNIST and CIFAR."""
SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".pgm", ".ppm"})


def load_folder(
    folder: Path, *, image_size: int | None = None, seed: int = 0, class_names: Sequence[str] | None = None
) -> Dataset:
    """The dataset in `folder`: `images.npy` and `labels.npy`, or a folder of image files for each class.

    With `class_names` it is one node's share of a federation that has these classes, some of which may be missing.
    """
    if not folder.is_dir():
        raise DataError(f"there is no folder {folder}")
    if image_size is not None and image_size < 1:
        raise UsageError(f"image_size is {image_size}; it must be at least 1")
    if (folder / "images.npy").exists() or (folder / "labels.npy").exists():
        if image_size is not None:
            raise UsageError(f"{folder} holds arrays; image_size is for folders of image files")
        return _from_arrays(folder, seed, class_names)
    return _from_images(folder, image_size, seed, class_names)


def hold_out(labels: Indices, seed: int) -> tuple[Indices, Indices]:
    """Indices to train and to test on: a sixth of each class is held out, and at least one sample of two."""
    counts = np.bincount(labels)
    quota = np.where(counts >= 2, np.maximum(1, np.round(counts / HELD_OUT)), 0)
    shuffled = generator(seed, "hold-out").permutation(len(labels))
    by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
    first = np.cumsum(counts) - counts
    rank = np.arange(len(labels)) - first[labels[by_class]]
    held = rank < quota[labels[by_class]]
    return np.sort(by_class[~held]), np.sort(by_class[held])


def _dataset(
    folder: Path, train: Split, test: Split | None, names: Sequence[str] | None, seed: int, lacking: bool
) -> Dataset:
    """Put the parts together, holding out a test set where there is none."""
    present = np.unique(train.labels)
    if names is None and present[-1] >= len(present):
        gap = np.flatnonzero(present != np.arange(len(present)))[0]
        raise DataError(
            f"{folder / 'labels.npy'}: no sample has the label {gap}, but one has {present[-1]};"
            " number the classes without gaps"
        )
    names = names or [str(label) for label in present]
    if test is not None:
        return Dataset(folder.resolve().name, train, test, tuple(names), lacking=lacking)
    kept, held = hold_out(train.labels, seed)
    if not len(held):
        raise DataError(f"{folder}: no class has two samples, so none can be held out for testing")
    note = f"{folder} has no test set: {len(held):,} of {len(train):,} samples are held out (seed {seed})"
    train, test = (Split(train.images[part], train.labels[part]) for part in (kept, held))
    return Dataset(folder.resolve().name, train, test, tuple(names), note, lacking)


def _from_arrays(folder: Path, seed: int, names: Sequence[str] | None) -> Dataset:
    train = _read_split(folder, "images.npy", "labels.npy")
    has_test = (folder / "test_images.npy").exists() or (folder / "test_labels.npy").exists()
    test = _read_split(folder, "test_images.npy", "test_labels.npy") if has_test else None
    return _dataset(folder, train, test, names, seed, lacking=names is not None)


def _read_split(folder: Path, images: str, labels: str) -> Split:
    pixels = _channels_first(_read_npy(folder / images), folder / images)
    classes = whole_labels(_read_npy(folder / labels), str(folder / labels))
    try:
        return Split(pixels, classes)
    except DataError as error:
        raise DataError(f"{folder / images}, {labels}: {error}") from error


def _read_npy(path: Path) -> NDArray[Any]:
    try:
        return read_npy(path)
    except FileNotFoundError as error:
        raise DataError(f"{path} is missing") from error
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: {error}") from error


def _channels_first(images: NDArray[Any], path: Path) -> NDArray[Any]:
    """[N, H, W], [N, H, W, 1|3] and [N, 1|3, H, W] as [N, C, H, W]; other shapes stay."""
    if images.ndim < 2 or images.dtype.kind not in "iufb":
        raise DataError(f"{path}: expected numbers [samples, ...], found {images.dtype} {list(images.shape)}")
    if images.ndim == 3:
        images = images[:, None]
    elif images.ndim == 4 and images.shape[1] not in (1, 3) and images.shape[3] in (1, 3):
        images = images.transpose(0, 3, 1, 2)
    if images.dtype == np.uint8 and images.ndim == 4:
        if images.shape[1] not in (1, 3):
            raise DataError(f"{path}: uint8 images need 1 or 3 channels, found shape {list(images.shape)}")
        return np.ascontiguousarray(images)
    with np.errstate(over="ignore"):  # what overflows is found as not finite
        return np.ascontiguousarray(images, dtype=np.float32)


def _from_images(folder: Path, image_size: int | None, seed: int, class_names: Sequence[str] | None) -> Dataset:
    train_folder = folder / "train" if (folder / "train").is_dir() else folder
    found = [child.name for child in _children(train_folder) if child.is_dir()]
    if not found:
        raise DataError(f"{folder}: neither images.npy and labels.npy nor a folder of images for each class")
    names = list(class_names or found)
    unknown = [name for name in found if name not in names]
    if unknown:
        raise DataError(f"{train_folder / unknown[0]}: the federation has no class of that name")
    test_folder = folder / "test" if train_folder != folder and (folder / "test").is_dir() else None
    files = [_image_files(train_folder, names, required=class_names is None)]
    if test_folder is not None:
        strange = [c.name for c in _children(test_folder) if c.is_dir() and c.name not in names]
        if strange:
            raise DataError(f"{test_folder / strange[0]}: there is no class of that name in {train_folder}")
        files.append(_image_files(test_folder, names, required=False))
    pictures = _decode([path for part in files for path, _ in part], image_size)
    train, *rest = (
        Split(pictures[start : start + len(part)], np.array([label for _, label in part], np.int64))
        for start, part in zip((0, len(files[0])), files, strict=False)
    )
    return _dataset(folder, train, rest[0] if rest else None, names, seed, lacking=class_names is not None)


def _children(folder: Path) -> list[Path]:
    return sorted(child for child in folder.iterdir() if not child.name.startswith("."))


def _image_files(folder: Path, names: Sequence[str], *, required: bool) -> list[tuple[Path, int]]:
    found = []
    for label, name in enumerate(names):
        inside = _children(folder / name) if (folder / name).is_dir() else []
        paths = [path for path in inside if path.suffix.lower() in SUFFIXES]
        if required and not paths:
            raise DataError(f"{folder / name}: the class {name} has no image file")
        found += [(path, label) for path in paths]
    if not found:
        raise DataError(f"{folder}: not a single image file in the folders of the classes")
    return found


def _decode(paths: Sequence[Path], image_size: int | None) -> NDArray[np.uint8]:
    """All pictures as one array [N, C, H, W]; one channel if all are grey, otherwise three."""
    pictures = [_decode_one(path, image_size) for path in paths]
    for path, picture in zip(paths, pictures, strict=True):
        if picture.shape[:2] != pictures[0].shape[:2]:
            sizes = [f"{p.shape[1]}×{p.shape[0]}" for p in (pictures[0], picture)]
            raise DataError(
                f"{paths[0]} is {sizes[0]} but {path} is {sizes[1]}; make them equal or give an image_size to resize to"
            )
    if any(picture.ndim == 3 for picture in pictures):
        pictures = [p if p.ndim == 3 else np.repeat(p[:, :, None], 3, axis=2) for p in pictures]
        return np.ascontiguousarray(np.stack(pictures).transpose(0, 3, 1, 2))
    return np.stack(pictures)[:, None]


def _decode_one(path: Path, image_size: int | None) -> NDArray[np.uint8]:
    from PIL import Image  # noqa: PLC0415 (only for image files)

    try:
        with quiet_pillow(), Image.open(path) as picture:
            if picture.mode.startswith(("I", "F")):
                raise DataError(f"{path}: more than 8 bits a channel; save it as 8-bit, or use images.npy")
            converted = picture.convert("L" if picture.mode in ("1", "L", "LA") else "RGB")
            if image_size is not None:
                converted = converted.resize((image_size, image_size), Image.Resampling.BILINEAR)
            return np.asarray(converted)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise DataError(f"{path}: not a readable image ({error})") from error


@contextmanager
def quiet_pillow() -> Iterator[None]:
    """Keep Pillow's warnings from the terminal: it warns of odd tags in good pictures, and refuses bad ones."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
