"""New samples for a trained model, from tables, image files or arrays."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedsat.data import tables
from fedsat.data.arrays import encode_labels, one_label_each
from fedsat.data.folders import SUFFIXES
from fedsat.data.images import Pixels, read_picture, stack_pictures
from fedsat.data.inputs import Inputs
from fedsat.data.npy import read_npy
from fedsat.data.schema import Columns
from fedsat.data.values import require_pandas
from fedsat.errors import DataError, UsageError
from fedsat.files import regular
from fedsat.seeding import Indices

NAMES = (("x", "y"), ("images", "labels"), ("x_test", "y_test"), ("test_images", "test_labels"))
"""Names of inputs and labels in an .npz file; of a dataset's file, the test set is used."""


@dataclass(frozen=True, eq=False)
class Unseen:
    """Samples that a model was not trained on."""

    x: Any
    """A data frame or an array, as `Inputs.read` takes it."""
    kind: str
    """What `names` are: `row`, `file` or `index`."""
    names: Sequence[str]
    """What each sample is called: its row in a table, its file, or its place in an array."""
    labels: Indices | None = None
    """The class of each sample, if asked for."""


def read_unseen(
    paths: Sequence[Path],
    inputs: Inputs,
    class_names: Sequence[str],
    *,
    image_size: int | None = None,
    labelled: bool = False,
) -> Unseen:
    """Return the samples in files and folders, with their classes if `labelled`.

    Tables have a label column, image files are in a folder of their class's name, and arrays come with their labels.
    """
    for path in paths:
        if not path.exists():
            raise DataError(f"there is no file or folder {path}")
    if inputs.schema is not None:
        return _rows(paths, inputs, labelled)
    files = [file for path in paths for file in _image_files(path)]
    arrays = [path for path in paths if not _image_files(path)]
    if files and arrays:
        raise UsageError(f"{arrays[0]} and {files[0]}: give either image files or arrays")
    if files:
        x = _fitted([read_picture(file, image_size) for file in files], files, inputs)
        labels = [file.parent.name for file in files] if labelled else None
        return Unseen(x, "file", [str(file) for file in files], _numbers(labels, class_names, str(paths[0])))
    found = [_arrays(path, labelled) for path in arrays]
    try:
        x = np.concatenate([x for x, _ in found])
    except ValueError as error:
        raise DataError(f"the files cannot be read together: {error}") from error
    labels = np.concatenate([y for _, y in found if y is not None]).tolist() if labelled else None
    return Unseen(x, "index", [str(place) for place in range(len(x))], _numbers(labels, class_names, str(paths[0])))


def _rows(paths: Sequence[Path], inputs: Inputs, labelled: bool) -> Unseen:
    assert inputs.schema is not None
    frames = []
    for path in paths:
        if not tables.is_table(path):
            raise UsageError(f"{path} is not a table, but the model was trained on one; give .csv or .parquet files")
        with tables.about(path):
            frames.append(tables.read(path, Columns()))
            inputs.schema.encode(frames[-1][:1])  # names the file whose columns differ
    names = [str(row) for frame in frames for row in range(1, len(frame) + 1)]
    if len(paths) > 1:
        origins = [path.name for path, frame in zip(paths, frames, strict=True) for _ in range(len(frame))]
        names = [f"{origin}:{name}" for origin, name in zip(origins, names, strict=True)]
    frame = require_pandas().concat(frames, ignore_index=True)
    return Unseen(frame, "row", names, inputs.schema.labels(frame) if labelled else None)


def _image_files(path: Path) -> list[Path]:
    """Return the image files at or below a path."""
    if path.is_file():
        return [path] if path.suffix.lower() in SUFFIXES else []
    return sorted(file for file in path.rglob("*") if file.suffix.lower() in SUFFIXES and file.name[0] != ".")


def _fitted(pictures: Sequence[Pixels], files: Sequence[Path], inputs: Inputs) -> NDArray[Any]:
    """Return pictures with the channels of the model's inputs; greyscale ones get three equal channels if needed."""
    stacked = stack_pictures(pictures, lambda place: str(files[place]))
    if stacked.shape[1] == 1 and inputs.shape[0] == 3:
        return np.repeat(stacked, 3, axis=1)
    if stacked.shape[1] == 3 and inputs.shape[0] == 1:
        colour = next(place for place, picture in enumerate(pictures) if picture.ndim == 3)
        raise DataError(f"{files[colour]} has colours, but the model was trained on greyscale images")
    return stacked


def _arrays(path: Path, labelled: bool) -> tuple[NDArray[Any], NDArray[Any] | None]:
    """Return inputs and labels of a folder with images.npy, an .npz file, or an .npy file, which has no labels."""
    try:
        if path.is_dir():
            x, y = read_npy(path / "images.npy"), path / "labels.npy"
            return x, read_npy(y) if labelled else None
        if path.suffix == ".npy" and not labelled:
            return read_npy(path), None
        if path.suffix == ".npz":
            with regular(path).open("rb") as file, np.load(file, allow_pickle=False) as stored:
                return _named(path, stored, labelled)
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile) as error:
        raise DataError(f"{path}: {error}") from error
    why = "an .npz file with x and y, or a folder of image files for each class" if labelled else "an .npy or .npz file"
    raise DataError(f"{path}: samples can be read from image files, {why}")


def _named(path: Path, stored: Any, labelled: bool) -> tuple[NDArray[Any], NDArray[Any] | None]:
    for x, y in NAMES:
        if x in stored and (y in stored or not labelled):
            return stored[x], one_label_each(stored[y], str(path)) if labelled else None
    wanted = " or ".join(f"{x} and {y}" if labelled else x for x, y in NAMES)
    raise DataError(f"{path}: contains {', '.join(stored.files) or 'nothing'}; expected {wanted}")


def _numbers(labels: ArrayLike | None, class_names: Sequence[str], where: str) -> Indices | None:
    return None if labels is None else class_numbers(labels, class_names, where)


def class_numbers(labels: ArrayLike, class_names: Sequence[str], where: str) -> Indices:
    """Return labels, given as names or numbers, as numbers of these classes."""
    numbers, _ = encode_labels(np.asarray(labels), class_names, where)
    if numbers.max(initial=0) >= len(class_names):
        raise DataError(f"{where}: a label is {numbers.max()}; with {len(class_names)} classes, the largest is "
                        f"{len(class_names) - 1}")  # fmt: skip
    return numbers
