"""A user's own data: arrays in .npy files, or a folder of image files for each class."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsat.data.arrays import channels_first, number_classes, number_clients, whole_labels
from fedsat.data.datasets import Dataset, Split, with_test_held_out
from fedsat.data.npy import read_npy
from fedsat.errors import DataError, UsageError
from fedsat.seeding import Indices

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".pgm", ".ppm"})


def load_folder(
    folder: Path, *, image_size: int | None = None, seed: int = 0, class_names: Sequence[str] | None = None
) -> Dataset:
    """Return the dataset in `folder`: `images.npy` and `labels.npy`, or a folder of image files for each class.

    With `class_names`, it is one node's part of a federation that has these classes, some of which may be missing.
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


def _dataset(
    folder: Path,
    train: Split,
    test: Split | None,
    names: Sequence[str] | None,
    seed: int,
    lacking: bool,
    owners: Indices | None = None,
) -> Dataset:
    """Return the dataset, with a held-out test set if there is none."""
    names = names or number_classes(train.labels, str(folder / "labels.npy"))
    if test is not None:
        return Dataset(folder.resolve().name, train, test, tuple(names), lacking=lacking, owners=owners)
    made = with_test_held_out(str(folder), train, names, seed, lacking=lacking, owners=owners)
    return replace(made, name=folder.resolve().name)


def _from_arrays(folder: Path, seed: int, names: Sequence[str] | None) -> Dataset:
    train = _read_split(folder, "images.npy", "labels.npy")
    has_test = (folder / "test_images.npy").exists() or (folder / "test_labels.npy").exists()
    test = _read_split(folder, "test_images.npy", "test_labels.npy") if has_test else None
    path = folder / "clients.npy"
    owners = number_clients(_read_npy(path), len(train), str(path)) if path.exists() else None
    return _dataset(folder, train, test, names, seed, names is not None, owners)


def _read_split(folder: Path, images: str, labels: str) -> Split:
    pixels = channels_first(_read_npy(folder / images), str(folder / images))
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
        raise DataError(f"{folder}: the folders of the classes contain no image file")
    return found


def _decode(paths: Sequence[Path], image_size: int | None) -> NDArray[np.uint8]:
    """Return all images as one array [N, C, H, W]; one channel if all are greyscale, otherwise three."""
    pictures = [_decode_one(path, image_size) for path in paths]
    for path, picture in zip(paths, pictures, strict=True):
        if picture.shape[:2] != pictures[0].shape[:2]:
            sizes = [f"{p.shape[1]}×{p.shape[0]}" for p in (pictures[0], picture)]
            raise DataError(
                f"{paths[0]} is {sizes[0]} but {path} is {sizes[1]}; make them equal or set image_size to resize them"
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
                raise DataError(f"{path}: more than 8 bits per channel; save it as 8-bit, or use images.npy")
            converted = picture.convert("L" if picture.mode in ("1", "L", "LA") else "RGB")
            if image_size is not None:
                converted = converted.resize((image_size, image_size), Image.Resampling.BILINEAR)
            return np.asarray(converted)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise DataError(f"{path}: not a readable image ({error})") from error


@contextmanager
def quiet_pillow() -> Iterator[None]:
    """Hide Pillow's warnings: they are about odd tags in valid images; invalid images raise an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
