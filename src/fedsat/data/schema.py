"""The schema of a table: its columns as the training rows have them, and how other rows become the same inputs.

A row becomes a vector. A number is one input, normalised by the mean and standard deviation of the training rows; dates
count as numbers of days. A categorical column has one input for each category and one for all others; exactly one of
them is 1. A column with missing values in training has one more input, which is 1 where the value is missing.
"""

from __future__ import annotations

import dataclasses
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from fedsat.data.values import DISTINCT, as_days, as_flags, as_numbers, as_text, kind_of_values, refuse_at
from fedsat.errors import DataError
from fedsat.options import coerce
from fedsat.seeding import Indices

if TYPE_CHECKING:
    import pandas as pd  # type: ignore[import-untyped]

Floats = NDArray[np.float64]
Kind = Literal["number", "date", "boolean", "category", "hashed"]

MOST_CATEGORIES = 64
"""The most frequent categories of a column have an input of their own; the others share one."""
BUCKETS = 32
"""Inputs of a hashed column."""
LARGEST = 1e30
"""Larger numbers would soon overflow in float32."""


@dataclass(frozen=True)
class Columns:
    """The roles of a table's columns; all others are inputs."""

    label: str | None = None
    client: str | None = None
    test_column: str | None = None
    drop: tuple[str, ...] = ()
    hashed: tuple[str, ...] = ()

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Columns:
        """Return the columns that the settings of a run name; lists may be texts with commas."""
        given: dict[str, Any] = {each.name: settings[each.name] for each in fields(cls) if settings.get(each.name)}
        for name in given.keys() & {"drop", "hashed"}:
            given[name] = coerce(given[name], tuple[str, ...], name)
        return cls(**given)

    @property
    def not_inputs(self) -> set[str]:
        """The columns that the network does not see."""
        return {name for name in (self.label, self.client, self.test_column) if name is not None} | set(self.drop)


@dataclass(frozen=True)
class Column:
    """An input column, as the training rows have it."""

    name: str
    kind: Kind
    mean: float = 0.0
    deviation: float = 1.0
    categories: tuple[str, ...] = ()
    """The categories with an input of their own, sorted."""
    usual: str = ""
    """The most frequent value of a category or boolean, which stands for missing values; a number has its mean."""
    missing: bool = False
    """Whether one more input marks missing values."""

    @classmethod
    def of(cls, values: pd.Series, *, hashed: bool) -> Column:
        """Return the column with these values in training, or refuse it and say what to do."""
        name, gone = str(values.name), values.isna()
        known, missing = values[~gone], bool(gone.any())
        if known.empty:
            raise DataError(f"column {name!r} has no value in the training rows; leave it out with --drop {name}")
        if hashed:
            return cls(name, "hashed", missing=missing)
        found = kind_of_values(known)
        if found == "category":
            return cls._of_categories(name, as_text(known), missing)
        numbers = READERS[found](known)
        if found == "number" and _numbers_the_rows(numbers):
            raise DataError(f"column {name!r} numbers the rows; leave it out with --drop {name}")
        refuse_at(known, np.abs(numbers) > LARGEST, name, "which is too large")
        mean, deviation = float(numbers.mean()), float(numbers.std())
        usual = str(mean > 0.5).lower() if found == "boolean" else ""
        # A constant column has the deviation 1, up to rounding, and so the input 0.
        return cls(name, found, mean, deviation if deviation > 1e-10 * abs(mean) else 1.0, usual=usual, missing=missing)

    @classmethod
    def _of_categories(cls, name: str, texts: pd.Series, missing: bool) -> Column:
        counts = texts.value_counts()
        if len(counts) > max(DISTINCT, len(texts) / 2):
            raise DataError(
                f"column {name!r} is text with {len(counts):,} different values in {len(texts):,} rows; "
                f"leave it out with --drop {name}, or use it with --hashed {name}"
            )
        frequent = sorted(counts.index, key=lambda text: (-counts[text], text))
        return cls(name, "category", categories=tuple(sorted(frequent[:MOST_CATEGORIES])), usual=frequent[0],
                   missing=missing)  # fmt: skip

    @property
    def width(self) -> int:
        """The number of inputs."""
        own = {"category": len(self.categories) + 1, "hashed": BUCKETS}.get(self.kind, 1)
        return own + self.missing

    def read(self, values: pd.Series) -> Floats:
        """Return one number for each value, NaN where it is missing: the number itself, days since 1970, 1 for true.

        A category becomes its place in `categories`, and all others the next one. Hashed text becomes its bucket.
        """
        if self.kind not in ("category", "hashed"):
            return READERS[self.kind](values)
        texts = as_text(values)
        if self.kind == "hashed":
            codes = [float(zlib.crc32(text.encode()) % BUCKETS) for text in texts]
        else:
            place = {category: float(number) for number, category in enumerate(self.categories)}
            codes = [place.get(text, float(len(place))) for text in texts]
        return np.where(values.isna().to_numpy(), np.nan, np.array(codes, np.float64))

    @property
    def fill(self) -> float:
        """The replacement of a missing value, as `read` returns it; a missing hashed text is in no bucket."""
        if self.kind == "category":
            return float((*self.categories, self.usual).index(self.usual))
        if self.kind == "boolean":
            return float(self.usual == "true")
        return -1.0 if self.kind == "hashed" else self.mean

    def encode(self, values: pd.Series) -> NDArray[np.float32]:
        """Return the inputs of these values, [rows, width]."""
        numbers = self.read(values)
        if self.kind in READERS:
            far = np.abs(numbers - self.mean) / self.deviation > LARGEST
            refuse_at(values, far, self.name, "which is too far from the other values")
        return self.inputs(numbers)

    def inputs(self, numbers: Floats) -> NDArray[np.float32]:
        """Return the inputs of values as `read` returns them, [rows, width]."""
        gone = np.isnan(numbers)[:, None]
        filled = np.where(gone, self.fill, numbers[:, None])
        if self.kind in READERS:
            block = (filled - self.mean) / self.deviation
        else:
            block = filled == np.arange(self.width - self.missing)
        return np.hstack([block, gone] if self.missing else [block]).astype(np.float32)


READERS = {"number": as_numbers, "date": as_days, "boolean": as_flags}


def _numbers_the_rows(numbers: Floats) -> bool:
    """Whether the values are consecutive whole numbers, each once."""
    count = len(numbers)
    whole = count > DISTINCT and numbers.max() - numbers.min() == count - 1
    return bool(whole and (np.diff(np.sort(numbers)) == 1).all())


@dataclass(frozen=True)
class Schema:
    """The columns of a table, and the classes of its label. A federation agrees on one."""

    label: str
    classes: tuple[str, ...]
    columns: tuple[Column, ...]

    @classmethod
    def of(cls, frame: pd.DataFrame, columns: Columns) -> Schema:
        """Return the schema of training rows; `columns.label` must be given."""
        assert columns.label is not None
        inputs = [str(name) for name in frame.columns if str(name) not in columns.not_inputs]
        if not inputs:
            raise DataError(f"there is no column besides {', '.join(sorted(columns.not_inputs))}")
        found = tuple(Column.of(frame[name], hashed=name in columns.hashed) for name in inputs)
        return cls(columns.label, label_classes(frame[columns.label]), found)

    @cached_property
    def width(self) -> int:
        """The number of inputs of a row."""
        return sum(column.width for column in self.columns)

    def encode(self, frame: pd.DataFrame) -> NDArray[np.float32]:
        """Return the inputs of the rows, normalised, [rows, width]; an error names the column that differs."""
        for column in self.columns:
            if column.name not in frame.columns:
                raise DataError(f"column {column.name!r} ({column.kind}) is missing")
        blocks = [column.encode(frame[column.name]) for column in self.columns]
        return np.hstack(blocks)

    def inputs(self, numbers: Floats) -> NDArray[np.float32]:
        """Return the inputs of rows, [rows, width], from one number for each column, as `Column.read` returns it."""
        blocks = [column.inputs(numbers[:, place]) for place, column in enumerate(self.columns)]
        return np.hstack(blocks)

    def labels(self, frame: pd.DataFrame) -> Indices:
        """Return the class of each row."""
        if self.label not in frame.columns:
            raise DataError(f"column {self.label!r}, the label, is missing")
        place = {name: number for number, name in enumerate(self.classes)}
        texts = label_texts(frame[self.label])
        refuse_at(texts, ~texts.isin(place), self.label, f"which is not a class; the classes are {', '.join(place)}")
        return np.array([place[text] for text in texts], np.int64)

    def difference(self, other: Schema) -> str | None:
        """Describe how another schema differs, naming the first column that differs, or return None."""
        if (self.label, self.classes) != (other.label, other.classes):
            return f"the label {other.label!r} has the classes {', '.join(other.classes)}"
        ours, theirs = ({column.name: column for column in each.columns} for each in (self, other))
        for name in [*ours, *theirs]:
            if ours.get(name) != theirs.get(name):
                kind = theirs[name].kind if name in theirs else "missing"
                same = name in ours and kind == ours[name].kind
                return f"column {name!r} ({kind}) {'has other values' if same else 'is of another kind'}"
        return None if self == other else "the columns have another order"

    def to_json(self) -> str:
        """Return the schema as JSON; numbers are exact."""
        return json.dumps(dataclasses.asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> Schema:
        """Read what `to_json` returned."""
        try:
            table = json.loads(text)
            columns = tuple(
                Column(**{**column, "categories": tuple(column["categories"])}) for column in table["columns"]
            )
            strange = [column.kind for column in columns if column.kind not in get_args(Kind)]
            if strange:
                raise ValueError(f"unknown kind {strange[0]!r}")
            return cls(str(table["label"]), tuple(map(str, table["classes"])), columns)
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f"not the schema of a table ({type(error).__name__}: {error})") from error


def label_texts(values: pd.Series) -> pd.Series:
    """Return the labels as texts; every row must have one."""
    refuse_at(values, values.isna(), str(values.name), "the label is missing; leave such rows out")
    return as_text(values)


def label_classes(values: pd.Series) -> tuple[str, ...]:
    """Return the classes: numbers in their order, other labels sorted as text."""
    name, texts = str(values.name), label_texts(values)
    found = texts.unique().tolist()
    if len(found) < 2:
        raise DataError(f"column {name!r}, the label, has the value {found[0]!r} only; training needs two classes")
    whole = all(text.lstrip("-").isdigit() for text in found)
    if kind_of_values(values) == "number" and not whole:
        odd = next(text for text in found if not text.lstrip("-").isdigit())
        raise DataError(f"column {name!r}, the label, holds numbers such as {odd}; put them into classes first")
    if len(found) > max(DISTINCT, len(texts) / 2):
        raise DataError(f"column {name!r}, the label, has {len(found):,} different values in {len(texts):,} rows")
    return tuple(sorted(found, key=int) if whole else sorted(found))
