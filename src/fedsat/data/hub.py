"""Hugging Face datasets: from the hub or a folder by name (`hf:NAME`), or as objects of the package `datasets`.

If a dataset has a column of images or arrays, these are its inputs. Any other dataset is read as a table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsat.data.arrays import channels_first
from fedsat.data.datasets import Dataset
from fedsat.data.images import pixels_of, stack_pictures
from fedsat.data.npz import Pair, joined
from fedsat.data.schema import Columns
from fedsat.errors import DataError, UsageError, unknown

PREFIX = "hf:"
LABELS = ("label", "labels", "target")
"""Names of a column that is the label if nothing else says which one is."""
NAMES = {"validation": "val", "valid": "val", "dev": "val"}
"""Other names of splits."""
ARRAYS = ("Array2D", "Array3D", "Array4D", "Array5D")


def is_hugging_face(source: Any) -> bool:
    """Whether an object is a dataset of the package `datasets`."""
    return hasattr(source, "features") and hasattr(source, "column_names") and hasattr(source, "to_pandas")


def load_hub(source: str, columns: Columns, image_size: int | None, seed: int) -> Dataset:
    """Return the dataset `hf:NAME` or `hf:NAME:CONFIGURATION`; NAME may be a folder made by `save_to_disk`."""
    return of_splits(read(source), columns, source, image_size, seed)


def read(source: str) -> Mapping[str, Any]:
    """Return the splits of `hf:NAME`. Code from the hub is never run."""
    try:
        import datasets  # type: ignore[import-not-found,unused-ignore]  # noqa: PLC0415 (an extra)
    except ImportError as error:
        raise UsageError(f"{source} needs datasets; install it with pip install 'fedsat[hf]'") from error
    name, _, configuration = source.removeprefix(PREFIX).partition(":")
    folder = Path(name).expanduser()
    try:
        if (folder / "dataset_dict.json").exists() or (folder / "state.json").exists():
            found = datasets.load_from_disk(str(folder))
        else:
            found = datasets.load_dataset(name, configuration or None)
    except Exception as error:  # the package raises errors of many other packages
        raise DataError(f"{source}: cannot be loaded ({' '.join(str(error).split())[:300]})") from error
    return found if isinstance(found, Mapping) else {"train": found}


def outline(source: str, columns: Columns) -> tuple[int | None, bool]:
    """Return the number of clients that a dataset has, if a column names them, and whether it is a table."""
    train = _splits(read(source), source)["train"]
    inputs = _input_of(train, _label_of(train, columns, source), columns)
    return None if columns.client is None else len(train.unique(_known(columns.client, train))), inputs is None


def of_splits(
    found: Mapping[str, Any], columns: Columns, name: str | None, image_size: int | None, seed: int
) -> Dataset:
    """Return the dataset in the splits of a Hugging Face dataset; validation samples are added to training."""
    name = name or str(getattr(found["train"].info, "dataset_name", None) or "hugging-face")
    splits = _splits(found, name)
    train = splits["train"]
    label = _label_of(train, columns, name)
    inputs = _input_of(train, label, columns)
    if inputs is None:
        return _table(splits, replace(columns, label=label), name, seed)
    if columns.test_column or columns.drop or columns.hashed:
        raise UsageError(f"test_column, drop and hashed are settings for tables; the inputs of {name} are {inputs!r}")
    arrays = {part: _samples(split, inputs, label, image_size, name) for part, split in splits.items()}
    parts, note = joined(arrays, name)
    clients = None if columns.client is None else _clients(splits, columns.client)
    made = Dataset.from_arrays(
        *parts["train"], test=parts.get("test"), clients=clients, class_names=_class_names(train, label), name=name,
        seed=seed,
    )  # fmt: skip
    return replace(made, note="; ".join(text for text in (note, made.note) if text))


def _splits(found: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the splits train, val and test, if they exist."""
    splits = {NAMES.get(part, part): split for part, split in found.items()}
    if "train" not in splits:
        raise DataError(f"{name} has the splits {', '.join(found)}; it needs 'train'")
    return {part: splits[part] for part in ("train", "val", "test") if part in splits}


def _label_of(split: Any, columns: Columns, name: str) -> str:
    if columns.label is not None:
        return _known(columns.label, split)
    classes = [key for key, kind in split.features.items() if type(kind).__name__ == "ClassLabel"]
    usual = [key for key in split.column_names if key in LABELS]
    for candidates in (classes, usual):
        if len(candidates) == 1:
            return str(candidates[0])
    raise UsageError(
        f"{name}: name the column to predict with --label; the columns are {', '.join(split.column_names)}"
    )


def _known(column: str, split: Any) -> str:
    if column not in split.column_names:
        raise unknown("column", column, split.column_names)
    return column


def _input_of(split: Any, label: str, columns: Columns) -> str | None:
    """Return the column of images or arrays, or None for a table."""
    kinds_of = {str(key): type(kind).__name__ for key, kind in split.features.items()}
    others = {key: kind for key, kind in kinds_of.items() if key not in (label, columns.client)}
    for kinds in (("Image",), ARRAYS):
        found = [key for key, kind in others.items() if kind in kinds]
        if len(found) > 1:
            raise UsageError(f"the columns {', '.join(found)} could be the input; keep one of them (select_columns)")
        if found:
            return found[0]
    return None


def _class_names(split: Any, label: str) -> Sequence[str] | None:
    names: Sequence[str] | None = getattr(split.features[label], "names", None)
    return names


def _samples(split: Any, inputs: str, label: str, image_size: int | None, name: str) -> Pair:
    """Return the inputs and labels of a split."""
    columns = split.select_columns([inputs, label]).with_format(None)
    labels = np.asarray(columns[label][:])
    if type(split.features[inputs]).__name__ != "Image":
        if image_size is not None:
            raise UsageError(f"{name} holds arrays; image_size is for images")
        return channels_first(np.asarray(columns.with_format("numpy")[inputs][:]), f"{name}, {inputs}"), labels
    pictures = [pixels_of(row[inputs], image_size, f"{name}, image {place}") for place, row in enumerate(columns)]
    return stack_pictures(pictures, lambda place: f"{name}, image {place}"), labels


def _clients(splits: Mapping[str, Any], column: str) -> NDArray[Any]:
    """Return the client of each training sample."""
    return np.concatenate([np.asarray(splits[part][column][:]) for part in ("train", "val") if part in splits])


def _table(splits: Mapping[str, Any], columns: Columns, name: str, seed: int) -> Dataset:
    """Return the dataset of a table; classes are named as the dataset names them."""
    frames = {part: split.to_pandas() for part, split in splits.items()}
    names = _class_names(splits["train"], str(columns.label))
    for frame in frames.values():
        if names is not None:
            frame[columns.label] = [names[number] if number >= 0 else None for number in frame[columns.label]]
    train, note = frames["train"], ""
    if "val" in frames:
        import pandas as pd  # type: ignore[import-untyped]  # noqa: PLC0415 (comes with datasets)

        train = pd.concat([train, frames["val"]], ignore_index=True)
        note = f"{name}: {len(frames['val']):,} validation samples are added to the training samples"
    made = Dataset.from_table(train, test=frames.get("test"), name=name, seed=seed, **vars(columns))
    return replace(made, note="; ".join(text for text in (note, made.note) if text))
