"""The values of a column of a table, as numbers or as text. An error names the column, the row and the value."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedsat.errors import DataError, UsageError

if TYPE_CHECKING:
    import pandas as pd  # type: ignore[import-untyped]

Floats = NDArray[np.float64]

DISTINCT = 20
"""Up to this many different values do not make a column suspicious, however few rows there are."""

FLAGS = {"true": 1.0, "false": 0.0, "1": 1.0, "0": 0.0}
INFERRED = {
    **dict.fromkeys(("integer", "floating", "mixed-integer-float", "decimal"), "number"),
    **dict.fromkeys(("datetime64", "datetime", "date"), "date"),
    **dict.fromkeys(("string", "categorical", "mixed-integer"), "category"),
    "boolean": "boolean",
}
"""Kinds by pandas' name of what a column holds."""


def require_pandas() -> Any:
    """Return pandas, or say how to install it."""
    try:
        import pandas  # noqa: PLC0415 (an extra)
        import pyarrow  # type: ignore[import-untyped]  # noqa: F401, PLC0415 (reads .parquet)
    except ImportError as error:
        raise UsageError(f"tables need {error.name}; install it with pip install 'fedsat[tables]'") from error
    return pandas


def kind_of_values(known: pd.Series) -> Literal["number", "date", "boolean", "category"]:
    """Return the kind of a column's values, none of which is missing."""
    inferred = require_pandas().api.types.infer_dtype(known, skipna=True)
    found: Any = INFERRED.get(inferred)
    if inferred == "mixed" and all(isinstance(value, str | int | float) for value in known):
        found = "category"
    if found is None:
        raise DataError(
            f"column {known.name!r} holds values of the type {inferred}; leave it out with --drop {known.name}"
        )
    return "date" if found == "category" and _is_date_text(known) else found


def _is_date_text(known: pd.Series) -> bool:
    """Whether all texts are dates such as 2026-11-18, with or without a time."""
    texts = as_text(known)
    return bool(texts.str.match(r"\d{4}-\d{2}-\d{2}").all() and _dates(texts).notna().all())


def as_numbers(values: pd.Series) -> Floats:
    """Return numbers; NaN where the value is missing."""
    pd = require_pandas()
    if pd.api.types.is_datetime64_any_dtype(values):
        raise DataError(f"column {values.name!r} holds dates; numbers are expected")
    numbers = pd.to_numeric(values, errors="coerce").to_numpy(np.float64, na_value=np.nan)
    refuse_at(values, values.notna() & np.isnan(numbers), str(values.name), "which is not a number")
    refuse_at(values, np.isinf(numbers), str(values.name), "which is not finite")
    return np.asarray(numbers, np.float64)


def as_days(values: pd.Series) -> Floats:
    """Return dates as days since 1970; NaN where the value is missing."""
    pd = require_pandas()
    if pd.api.types.is_numeric_dtype(values) and values.notna().any():
        raise DataError(f"column {values.name!r} holds numbers; dates such as 2026-11-18 are expected")
    dates = _dates(values)
    refuse_at(values, values.notna() & dates.isna(), str(values.name), "which is not a date such as 2026-11-18")
    days = (dates - pd.Timestamp(0, tz="UTC")) / pd.Timedelta(days=1)
    return np.asarray(days, np.float64)


def as_flags(values: pd.Series) -> Floats:
    """Return 1 for true and 0 for false; NaN where the value is missing."""
    flags = as_text(values).str.lower().map(FLAGS)
    refuse_at(values, values.notna() & flags.isna(), str(values.name), "which is neither true nor false")
    return flags.to_numpy(np.float64, na_value=np.nan)  # type: ignore[no-any-return]


def as_text(values: pd.Series) -> pd.Series:
    """Return texts. Whole numbers have no decimal point, as a column with missing values would add one."""
    return values.astype(object).map(_text).astype(object)


def refuse_at(values: pd.Series, wrong: Any, name: str, why: str) -> None:
    """Raise an error about the first value that is wrong, if there is one; the first row of a file is row 1."""
    places = np.flatnonzero(np.asarray(wrong))
    if len(places):
        place, value = values.index[places[0]], str(values.iloc[places[0]])
        row = place + 1 if isinstance(place, int | np.integer) else places[0] + 1
        raise DataError(
            f"column {name!r}, row {row}: {f'{value[:40]!r}, ' if values.notna().iloc[places[0]] else ''}{why}"
        )


def _text(value: Any) -> str:
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _dates(values: pd.Series) -> pd.Series:
    return require_pandas().to_datetime(values, errors="coerce", format="ISO8601", utc=True)
