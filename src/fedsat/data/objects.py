"""Datasets from common objects: data frames, Hugging Face datasets, torch datasets, pairs of arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedsat.data import hub
from fedsat.data.datasets import Dataset
from fedsat.data.inputs import is_frame
from fedsat.data.schema import Columns
from fedsat.errors import DataError, UsageError

NO_COLUMNS = Columns()


def as_dataset(
    source: Any, *, columns: Columns = NO_COLUMNS, image_size: int | None = None, name: str | None = None, seed: int = 0
) -> Dataset:
    """Return the dataset in an object.

    Args:
        source: A pandas data frame, a Hugging Face dataset, a torch dataset (such as torchvision's and MedMNIST's), a
            pair (x, y) of arrays, or a mapping with such objects as `train` and `test`. A `Dataset` is returned as is.
        columns: The roles of the columns of a data frame or a Hugging Face dataset.
        image_size: Size in pixels to which images are resized.
        name: What to call the dataset in tables and records; by default the name of its class.
        seed: Decides which samples are held out if there is no test set.
    """
    if isinstance(source, Dataset):
        return source
    parts = dict(source) if isinstance(source, Mapping) else {"train": source}
    if "train" not in parts:
        raise DataError(f"the dataset is a mapping with {', '.join(map(repr, parts))}; it needs 'train'")
    if hub.is_hugging_face(parts["train"]):
        return hub.of_splits(parts, columns, name, image_size, seed)
    strange = [part for part in parts if part not in ("train", "test")]
    if strange:
        raise DataError(f"the dataset is a mapping with {strange[0]!r}; only 'train' and 'test' have a meaning")
    train, test = parts["train"], parts.get("test")
    if is_frame(train):
        return Dataset.from_table(train, test=test, name=name, seed=seed, **vars(columns))
    if columns != NO_COLUMNS:
        given = next(key for key, value in vars(columns).items() if value)
        raise UsageError(f"{given} is a setting for tables; the dataset is a {type(train).__name__}")
    return Dataset.from_torch(train, test=test, image_size=image_size, name=name or called(train), seed=seed)


def called(source: Any) -> str:
    """Return the name of a torch dataset's class, or for a subset that of its dataset's class."""
    while hasattr(source, "dataset"):
        source = source.dataset
    return "arrays" if isinstance(source, Sequence) else type(source).__name__
