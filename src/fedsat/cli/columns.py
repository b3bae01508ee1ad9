"""What `fedsat look` prints about tabular data: the columns, and the classes of each client."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from rich import box
from rich.table import Table

from fedsat import data
from fedsat.errors import UsageError
from fedsat.seeding import Indices

SHOWN = 40
"""Largest number of clients that are listed; the figure shows more."""


def columns_table(dataset: data.Dataset, schema: data.Schema) -> Table:
    """Return a table of the columns: what they hold, and in how many rows the value is missing."""
    table = Table(title=f"{dataset.name}: {schema.label} from {len(schema.columns)} columns", box=box.SIMPLE_HEAD)
    for heading in ("column", "kind", "inputs", "values", "missing"):
        table.add_column(heading, justify="right" if heading in ("inputs", "missing") else "left")
    end = 0
    for column in schema.columns:
        end += column.width
        gone = "0"
        if column.missing:  # the column's last input marks missing values
            gone = f"{sum(int(split.images[:, end - 1].sum()) for split in (dataset.train, dataset.test)):,}"
        table.add_row(column.name, column.kind, str(column.width), _values(column), gone)
    rows = f"{len(dataset.train):,} training and {len(dataset.test):,} test rows"
    table.caption = f"{rows}; values and inputs are from the training rows"
    table.caption_justify = "left"
    return table


def _values(column: data.Column) -> str:
    """Return a short description of a column's values."""
    if column.kind == "category":
        names = ", ".join(column.categories)
        return names if len(names) <= 40 else f"{len(column.categories)} categories, mostly {column.usual}"
    if column.kind == "hashed":
        return "text"
    if column.kind == "boolean":
        return f"true in {column.mean:.1%}"
    if column.kind == "date":
        return f"{np.datetime64(round(column.mean), 'D')} ± {column.deviation:.0f} days"
    return f"{column.mean:.4g} ± {column.deviation:.3g}"


def clients_table(counts: Indices, dataset: data.Dataset) -> Table:
    """Return a table of the number of training rows that each client has of each class."""
    table = Table(title="training rows by client and class", box=box.SIMPLE_HEAD)
    for heading in ("client", *dataset.class_names, "all"):
        table.add_column(heading, justify="left" if heading == "client" else "right")
    own = len(counts) == len(dataset.client_names)
    for client, row in enumerate(counts[:SHOWN]):
        name = dataset.client_names[client] if own else str(client)
        table.add_row(name, *(f"{count:,}" for count in row), f"{row.sum():,}")
    if len(counts) > SHOWN:
        table.caption = f"the first {SHOWN} of {len(counts):,} clients"
    return table


def write_schema(schema: data.Schema, path: Path | None) -> None:
    """Write the schema, if a file is given."""
    if path is None:
        return
    try:
        path.write_text(schema.to_json(), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write the schema to {path} ({error.strerror})") from error
