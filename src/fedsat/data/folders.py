"""A user's own data: arrays in .npy files, or a folder of image files for each class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsat.data.arrays import channels_first, number_classes, number_clients, whole_labels
from fedsat.data.datasets import Dataset, Split, with_test_held_out
from fedsat.data.images import read_picture, stack_pictures
from fedsat.data.npy import read_npy
from fedsat.data.npz import is_npz, read_npz
from fedsat.errors import DataError, UsageError
from fedsat.seeding import Indices

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".pgm", ".ppm"})


def load_folder(
    folder: Path, *, image_size: int | None = None, seed: int = 0, class_names: Sequence[str] | None = None
) -> Dataset:
    """Return the dataset in `folder`: `images.npy` and `labels.npy`, or a folder of image files for each class.

    Instead of a folder, it may be an .npz file such as those of MedMNIST. With `class_names`, it is one node's part of
    a federation that has these classes, some of which may be missing.
    """
    if is_npz(folder):
        if image_size is not None:
            raise UsageError(f"{folder} holds arrays; image_size is for folders of image files")
        return _from_npz(folder, seed, class_names)
    if folder.is_file():
        raise DataError(f"{folder} cannot be read as a dataset; give a .csv, .parquet or .npz file, or a folder")
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
    names = names or number_classes(train.labels, str(folder if is_npz(folder) else folder / "labels.npy"))
    if test is not None:
        return Dataset(folder.resolve().name, train, test, tuple(names), lacking=lacking, owners=owners)
    made = with_test_held_out(str(folder), train, names, seed, lacking=lacking, owners=owners)
    return replace(made, name=folder.resolve().name)


def _from_npz(path: Path, seed: int, names: Sequence[str] | None) -> Dataset:
    parts, note = read_npz(path)
    train, *rest = (_split(*part, path, what, f"{what} labels") for what, part in parts.items())
    made = _dataset(path, train, rest[0] if rest else None, names, seed, names is not None)
    return replace(made, note="; ".join(text for text in (note, made.note) if text))


def _from_arrays(folder: Path, seed: int, names: Sequence[str] | None) -> Dataset:
    train = _read_split(folder, "images.npy", "labels.npy")
    has_test = (folder / "test_images.npy").exists() or (folder / "test_labels.npy").exists()
    test = _read_split(folder, "test_images.npy", "test_labels.npy") if has_test else None
    path = folder / "clients.npy"
    owners = number_clients(_read_npy(path), len(train), str(path)) if path.exists() else None
    return _dataset(folder, train, test, names, seed, names is not None, owners)


def _read_split(folder: Path, images: str, labels: str) -> Split:
    return _split(_read_npy(folder / images), _read_npy(folder / labels), folder, images, labels)


def _split(x: NDArray[Any], y: NDArray[Any], place: Path, images: str, labels: str) -> Split:
    """Return samples; errors name the place and the arrays."""
    pixels = channels_first(x, str(place / images))
    classes = whole_labels(y, str(place / labels))
    try:
        return Split(pixels, classes)
    except DataError as error:
        raise DataError(f"{place / images}, {labels}: {error}") from error


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
    paths = [path for part in files for path, _ in part]
    pictures = stack_pictures([read_picture(path, image_size) for path in paths], lambda place: str(paths[place]))
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
