"""Loading a dataset by name, from a table or a folder, or from your own function."""

from __future__ import annotations

import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedsat.data import builtin, cache, folders, hub, tables
from fedsat.data.catalog import DATASETS, Arrays, has_name, info
from fedsat.data.datasets import OBJECT, Dataset, Split
from fedsat.data.npz import is_npz
from fedsat.data.objects import NO_COLUMNS, as_dataset
from fedsat.data.schema import Columns
from fedsat.entry_points import load_offer, offers
from fedsat.errors import DataError, UsageError
from fedsat.registry import import_object


def load(
    source: str | Dataset, *, image_size: int | None = None, columns: Columns = NO_COLUMNS, seed: int = 0
) -> Dataset:
    """Return a dataset by name (`DATASETS`), from a table, folder, .npz file, Hugging Face, or your own function.

    `hf:NAME` is a Hugging Face dataset, and `module:name` your own function. `image_size` resizes the images of a
    folder, or of Hugging Face, to squares of that size. `columns` gives the roles of a table's columns. `seed` decides
    which samples are held out for testing if a table or folder has no test set. None of them affects other datasets.
    """
    table, usual = table_path(source), builtin_columns(source)
    if table is not None and image_size is not None:
        raise UsageError(f"{source} is a table; image_size is for folders of image files")
    if table is not None and usual is not None:
        info(str(source)).verify_file(table)
        return replace(tables.load_table(table, columns if columns.label else usual, seed), name=str(source))
    if table is not None:
        return tables.load_table(table, columns, seed)
    if isinstance(source, str) and source.startswith(hub.PREFIX):
        return hub.load_hub(source, columns, image_size, seed)
    if columns != NO_COLUMNS:
        given = next(name for name, value in vars(columns).items() if value)
        raise UsageError(f"{given} is a setting for tables (.csv or .parquet files); {source} is none")
    if isinstance(source, str) and not has_name(source) and _is_path(source):
        return folders.load_folder(Path(source).expanduser(), image_size=image_size, seed=seed)
    dataset = source if isinstance(source, Dataset) else _by_name(source)
    if image_size not in (None, dataset.input_shape[-1]):
        size = dataset.input_shape[-1]
        raise UsageError(f"{dataset.name} has images of size {size}; image_size is for folders of image files")
    return dataset


def table_path(source: str | Dataset) -> Path | None:
    """Return the path of a dataset that is a table, and None for all other datasets."""
    if isinstance(source, Dataset):
        return None
    if source in DATASETS:
        return builtin.FOLDER / f"{source}.csv.gz" if DATASETS[source].columns is not None else None
    path = Path(source).expanduser()
    return path if tables.is_table(path) else None


def builtin_columns(source: str | Dataset) -> Columns | None:
    """Return the roles of a built-in table's columns, and None for all other datasets."""
    return DATASETS[source].columns if isinstance(source, str) and source in DATASETS else None


def _by_name(name: str) -> Dataset:
    if name.startswith(OBJECT):
        _, called, checksum = name.split(":", 2)
        raise DataError(
            f"the dataset {called!r} (checksum {checksum}) was passed as an object; pass it again in Python: "
            "fedsat.resume(folder, dataset=…) or fedsat.run(dataset=…)"
        )
    if ":" in name:
        return _from_function(name, import_object("dataset", name))
    if name not in DATASETS and name in offers("datasets"):
        return _from_function(name, load_offer("dataset", offers("datasets")[name]))
    known = info(name)
    arrays = _builtin(name) if known.builtin else _fetched(name)
    train = Split(arrays.train_images, arrays.train_labels.astype(np.int64))
    test = Split(arrays.test_images, arrays.test_labels.astype(np.int64))
    return Dataset(name, train, test, known.class_names)


def _from_function(name: str, function: Any) -> Dataset:
    """Call the function called `name`."""
    if not callable(function):
        raise UsageError(f"the dataset {name} is not a function; it must be one without arguments")
    try:
        return replace(as_dataset(function()), name=name)
    except DataError as error:
        raise DataError(f"{name}() must return a dataset, or an object that can become one: {error}") from error


def _is_path(name: str) -> bool:
    return "/" in name or "\\" in name or name.startswith((".", "~")) or Path(name).is_dir() or is_npz(Path(name))


def _fetched(name: str) -> Arrays:
    if not cache.is_cached(name):
        raise DataError(f"{name} is not on this machine yet; run `fedsat data get {name}`")
    return cache.read(name)


def _builtin(name: str) -> Arrays:
    try:
        with builtin.FILE.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            arrays = Arrays(*(stored[field] for field in Arrays._fields))
        return info(name).verify(arrays, builtin.FILE.name)
    except (DataError, OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise DataError(f"the built-in {name} is damaged ({error}); install fedsat again") from error
