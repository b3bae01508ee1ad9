"""Tables: .csv and .parquet files, or a folder of them. A column is the label, another may name each row's client."""

from __future__ import annotations

import csv
import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedsat.data.arrays import number_clients
from fedsat.data.datasets import Dataset, Moments, Split, held_out_note
from fedsat.data.schema import Columns, Schema, label_texts
from fedsat.data.splits import hold_out
from fedsat.data.values import as_text, kind_of_values, refuse_at, require_pandas
from fedsat.errors import DataError, UsageError, unknown
from fedsat.files import regular
from fedsat.seeding import Indices

if TYPE_CHECKING:
    import pandas as pd  # type: ignore[import-untyped]

SUFFIXES = (".csv", ".csv.gz", ".parquet")
HELD_OUT = 0.2
"""The share of rows that is held out for testing if no column says which rows are the test set."""
FILE = "file"
"""The value of `client` that makes each file of a folder a client, unless a column has this name."""
PARTS = {"train": 0.0, "test": 1.0, "0": 0.0, "1": 1.0, "false": 0.0, "true": 1.0}
"""What the test column may hold, and whether it means the test set."""


def is_table(path: Path) -> bool:
    """Whether `path` names a table, which may not exist, or is a folder of tables, without arrays and subfolders."""
    if not path.is_dir():
        return path.name.endswith(SUFFIXES)
    return bool(_files(path)) and not any(child.is_dir() or child.suffix == ".npy" for child in path.iterdir())


def load_table(path: Path, columns: Columns, seed: int) -> Dataset:
    """Return the dataset in a table; its schema is that of the training rows."""
    with about(path):
        return of_frame(read(path, columns), columns, path.resolve().name, seed)


def load_part(path: Path, columns: Columns, seed: int, schema: Schema) -> Dataset:
    """Return one node's part of a federation that has agreed on `schema`; classes may be missing."""
    with about(path):
        frame = read(path, Columns())
        named = columns.test_column in frame.columns
        test = rows_to_test(frame, str(columns.test_column)) if named else held_out(schema.labels(frame), seed)
        return _dataset(path.resolve().name, Rows(frame[~test], frame[test], columns), schema, lacking=True)


def of_frame(
    frame: pd.DataFrame, columns: Columns, name: str, seed: int, tested: pd.DataFrame | None = None
) -> Dataset:
    """Return the dataset in a data frame; `tested` has the rows of the test set, if they are not among the others."""
    whole = frame if tested is None else _with_test(frame, tested, columns)
    train_rows, frame = len(frame), _checked(whole, columns)
    clients = None if columns.client is None else _clients(frame[columns.client])
    if tested is not None:
        test, note = np.arange(len(frame)) >= train_rows, ""
    elif columns.test_column is not None:
        test, note = rows_to_test(frame, columns.test_column), ""
    else:
        labels = np.unique(label_texts(frame[columns.label]).to_numpy(str), return_inverse=True)[1].astype(np.int64)
        test = held_out(labels, seed, None if clients is None else number_clients(clients, len(frame), name))
        note = held_out_note(name, int(test.sum()), len(frame), seed)
    made = replace(Rows(frame[~test], frame[test], columns).dataset(name), note=note)
    if clients is None:
        return made
    own = clients[~test]
    return replace(made, owners=number_clients(own, len(own), name), client_names=tuple(map(str, np.unique(own))))


def _with_test(frame: pd.DataFrame, tested: pd.DataFrame, columns: Columns) -> pd.DataFrame:
    """Return the rows of both; the test rows need not name a client."""
    if columns.test_column is not None:
        raise UsageError("give either test_column or a data frame with the test set")
    missing = [name for name in frame.columns if name not in tested.columns and name != columns.client]
    if missing:
        raise DataError(f"the test set has no column {missing[0]!r}")
    if columns.client in frame.columns:
        tested = tested.assign(**{str(columns.client): frame[columns.client].iloc[0]})
    return require_pandas().concat([frame, tested[list(frame.columns)]], ignore_index=True)


def count_clients(path: Path, columns: Columns) -> int:
    """Return how many clients have training rows, as the partition `natural` has them."""
    with about(path):
        frame = _checked(read(path, columns), columns)
        clients = _clients(frame[columns.client])
        train = slice(None) if columns.test_column is None else ~rows_to_test(frame, columns.test_column)
        return len(np.unique(clients[train]))


@dataclass(frozen=True, eq=False)
class Rows:
    """The rows that a dataset is made of, as they are in the table."""

    train: pd.DataFrame
    test: pd.DataFrame
    columns: Columns

    def part(self, kept: Indices, held: Indices | None) -> Rows:
        """Return some of the training rows; those held out, if any, replace the test rows."""
        return Rows(self.train.iloc[kept], self.test if held is None else self.train.iloc[held], self.columns)

    def dataset(self, name: str) -> Dataset:
        """Return the dataset of the rows, with the schema of the training rows."""
        return replace(_dataset(name, self, Schema.of(self.train, self.columns)), rows=self)


def _dataset(name: str, rows: Rows, schema: Schema, *, lacking: bool = False) -> Dataset:
    """Return the dataset of the rows. The schema has normalised them, so engines must not do it again."""
    train, test = (Split(schema.encode(part), schema.labels(part)) for part in (rows.train, rows.test))
    return Dataset(name, train, test, schema.classes, lacking=lacking, agreed=unchanged(schema.width), schema=schema)


def unchanged(width: int) -> Moments:
    """Return mean 0 and standard deviation 1, for inputs that are normalised already."""
    return (0.0,) * width, (1.0,) * width


def rows_to_test(frame: pd.DataFrame, column: str) -> NDArray[np.bool_]:
    """Return which rows are the test set according to a column with train and test, 0 and 1, or false and true."""
    flags = as_text(frame[column]).str.lower().map(PARTS)
    refuse_at(frame[column], flags.isna(), column, "it must say train or test, or 0 or 1")
    test = flags.to_numpy(np.float64) == 1
    if test.all() or not test.any():
        raise DataError(f"column {column!r} puts every row into the {'test' if test.all() else 'training'} set")
    return np.asarray(test, np.bool_)


def held_out(labels: Indices, seed: int, owners: Indices | None = None) -> NDArray[np.bool_]:
    """Return which rows are held out for testing: a fifth of each class, and not all rows of a client."""
    held = hold_out(labels, seed, share=HELD_OUT, owners=owners)[1]
    if not len(held):
        raise DataError("there are too few rows to hold some out for testing; add a column for --test-column")
    test = np.zeros(len(labels), np.bool_)
    test[held] = True
    return test


def _clients(values: pd.Series) -> NDArray[Any]:
    """Return the client of each row; numbers stay numbers, so that client 10 comes after client 2."""
    refuse_at(values, values.isna(), str(values.name), "the client is missing")
    whole = kind_of_values(values) == "number" and bool(((values % 1 == 0) & (values.abs() < 2**53)).all())
    return values.to_numpy(np.int64) if whole else as_text(values).to_numpy(str)  # type: ignore[no-any-return]


def _checked(frame: pd.DataFrame, columns: Columns) -> pd.DataFrame:
    """Return the frame with rows counted from 0, after checking the roles of the columns."""
    frame = frame.rename(columns=str).reset_index(drop=True)
    known = [str(name) for name in frame.columns]
    if columns.label is None:
        raise UsageError(f"name the column to predict with --label; the columns are {', '.join(known)}")
    doubled = next((name for name in known if known.count(name) > 1), None)
    if doubled is not None:
        raise DataError(f"two columns are called {doubled!r}")
    roles = [columns.label, columns.client, columns.test_column, *columns.drop, *columns.hashed]
    named = [name for name in roles if name is not None]
    for name in named:
        if name not in known:
            raise unknown("column", name, known)
        if named.count(name) > 1:
            raise UsageError(
                f"column {name!r} is named twice; it can be one of label, client, test, dropped and hashed"
            )
    return frame


def read(path: Path, columns: Columns) -> pd.DataFrame:
    """Return the rows of a file, or of all files of a folder in the order of their names."""
    pd = require_pandas()
    if not path.exists():
        raise DataError("there is no such file")
    if not path.is_dir():
        return _read_file(path)
    frames = {file.name: _read_file(file) for file in _files(path)}
    first, known = next((name, frame.columns) for name, frame in frames.items())
    for file, frame in frames.items():
        for name in known.symmetric_difference(frame.columns):
            has, lacks = (first, file) if name in known else (file, first)
            raise DataError(f"{has} has the column {name!r}, but {lacks} does not")
        if columns.client == FILE and FILE not in known:
            frame[FILE] = file.partition(".")[0]
    return pd.concat(frames.values(), ignore_index=True)


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.name.endswith(SUFFIXES) and path.name[0] != ".")


def _read_file(path: Path) -> pd.DataFrame:
    pd = require_pandas()
    import pyarrow as pa  # type: ignore[import-untyped]  # noqa: PLC0415 (an extra)

    try:
        file = regular(path)
        frame = pd.read_parquet(file, engine="pyarrow") if path.suffix == ".parquet" else _read_csv(file)
    except UnicodeDecodeError as error:
        raise DataError(f"{path.name} is not UTF-8; save it as UTF-8 (in Excel: CSV UTF-8)") from error
    except (OSError, EOFError, ValueError, OverflowError, zlib.error, csv.Error, pa.ArrowException) as error:
        raise DataError(f"{path.name} cannot be read: {' '.join(str(error).split())}") from error
    if frame.empty:
        raise DataError(f"{path.name} has no rows")
    return frame


def _read_csv(path: Path) -> pd.DataFrame:
    """Read a CSV file; the header determines whether commas, semicolons or tabs separate the fields."""
    with gzip.open(path, "rt", **TEXT) if path.suffix == ".gz" else path.open(**TEXT) as file:
        line = file.readline()
        separator = max(",;\t", key=line.count)
        file.seek(0)
        rows = csv.reader(file, delimiter=separator, skipinitialspace=True)
        header = [name.strip() for name in next(rows, [])]
        fields = len(next(filter(None, rows), []))
    if not any(header):
        raise ValueError("it is empty, or its first line is")
    if fields > len(header):  # pandas would take the first fields for names of the rows
        raise ValueError(f"its first row has {fields} fields, its header {len(header)}")
    names = [name or f"column {place}" for place, name in enumerate(header, start=1)]
    if len(set(names)) < len(names):
        raise ValueError(f"two columns are called {next(name for name in names if names.count(name) > 1)!r}")
    options = {"sep": separator, "header": 0, "names": names, "skipinitialspace": True, "low_memory": False}
    return require_pandas().read_csv(path, encoding=TEXT["encoding"], **options)


TEXT: dict[str, Any] = {"encoding": "utf-8-sig", "newline": ""}


@contextmanager
def about(path: Path) -> Iterator[None]:
    """Name the table in errors about it."""
    try:
        yield
    except (DataError, UsageError) as error:
        raise type(error)(f"{path}: {error}") from error
