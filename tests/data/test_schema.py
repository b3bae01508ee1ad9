"""The schema of a table: what each column becomes, worked out by hand, and which columns are refused."""

from __future__ import annotations

import math
import zlib
from datetime import date
from decimal import Decimal
from typing import Any

import numpy as np
import pytest

from fedsat.data.schema import BUCKETS, MOST_CATEGORIES, Columns, Schema
from fedsat.errors import DataError

pd = pytest.importorskip("pandas", reason="pandas is not installed: pip install 'fedsat[tables]'")

FRAME = pd.DataFrame(
    {
        "age": [20.0, 40.0, None, 60.0],
        "ward": ["b", "a", "b", None],
        "ill": [True, False, True, True],
        "seen": ["2026-01-01", "2026-01-03", "2026-01-02", "2026-01-02"],
        "outcome": [0, 1, 1, 0],
    }
)
SCHEMA = Schema.of(FRAME, Columns("outcome"))


def read(frame: Any) -> tuple[Any, Any]:
    return SCHEMA.labels(frame), SCHEMA.encode(frame)


def test_inputs_by_hand() -> None:
    deviation = math.sqrt((20**2 + 0 + 20**2) / 3)  # of 20, 40 and 60
    ill = math.sqrt(0.75 * 0.25)
    day = math.sqrt(2 / 4)
    expected = [
        # age, age is missing, a, b, other, ward is missing, ill, seen
        [-20 / deviation, 0, 0, 1, 0, 0, 0.25 / ill, -1 / day],
        [0, 0, 1, 0, 0, 0, -0.75 / ill, 1 / day],
        [0, 1, 0, 1, 0, 0, 0.25 / ill, 0],  # a missing number counts as the mean
        [20 / deviation, 0, 0, 1, 0, 1, 0.25 / ill, 0],  # a missing category as the most frequent one
    ]
    assert SCHEMA.width == 8
    np.testing.assert_allclose(SCHEMA.encode(FRAME), np.array(expected), rtol=1e-6)
    assert SCHEMA.classes == ("0", "1")
    assert SCHEMA.labels(FRAME).tolist() == [0, 1, 1, 0]


def test_new_rows() -> None:
    """Other types with the same meaning are read; unknown categories share an input."""
    rows = {"outcome": ["1"], "seen": [pd.Timestamp("2026-01-02")], "ill": ["FALSE"], "ward": ["z"], "age": ["40"]}
    new = pd.DataFrame({**rows, "extra": [1]}, index=["first"])
    np.testing.assert_allclose(SCHEMA.encode(new)[0, [0, 1, 2, 3, 4, 5, 7]], [0, 0, 0, 0, 1, 0, 0], atol=1e-7)
    assert SCHEMA.labels(new).tolist() == [1]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"age": [20, "old", 3, 4]}, "column 'age', row 2: 'old', which is not a number"),
        ({"age": [20, math.inf, 3, 4]}, "column 'age', row 2: 'inf', which is not finite"),
        ({"age": [20, 1e38, 3, 4]}, "column 'age', row 2: '1e\\+38', which is too far from the other values"),
        ({"age": pd.to_datetime(["2026-01-01"] * 4)}, "column 'age' holds dates"),
        ({"seen": [1, 2, 3, 4]}, "column 'seen' holds numbers; dates such as"),
        ({"seen": ["2026-01-01", "1.2.2026", None, None]}, "row 2: '1.2.2026', which is not a date"),
        ({"ill": ["yes", None, "no", "no"]}, "column 'ill', row 1: 'yes', which is neither true nor false"),
        ({"outcome": [0, 2, 1, 1]}, "row 2: '2', which is not a class; the classes are 0, 1"),
        ({"outcome": [0, None, 1, 1]}, "column 'outcome', row 2: the label is missing"),
    ],
)
def test_an_error_names_the_column_that_differs(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(DataError, match=words):
        read(FRAME.assign(**changes))


@pytest.mark.parametrize(("name", "words"), [("ward", r"'ward' \(category\) is missing"), ("outcome", "the label")])
def test_a_column_is_missing(name: str, words: str) -> None:
    with pytest.raises(DataError, match=words):
        read(FRAME.drop(columns=name))


def test_json_keeps_every_digit() -> None:
    assert Schema.from_json(SCHEMA.to_json()) == SCHEMA
    for text in ("[]", "{", '{"label": "a"}', SCHEMA.to_json().replace('"number"', '"colour"')):
        with pytest.raises(DataError, match="not the schema of a table"):
            Schema.from_json(text)


def test_differences() -> None:
    def other(**changes: Any) -> str | None:
        return SCHEMA.difference(Schema.of(FRAME.assign(**changes), Columns("outcome")))

    assert other() is None
    assert other(age=[1, 2, 3, 4]) == "column 'age' (number) has other values"
    assert other(age=["1", "b", "c", "d"]) == "column 'age' (category) is of another kind"
    assert other(more=[1, 2, 3, 5]) == "column 'more' (number) is of another kind"
    assert other(outcome=["x", "y", "y", "y"]) == "the label 'outcome' has the classes x, y"


def test_frequent_categories_have_an_input_of_their_own() -> None:
    codes = [f"c{number:03}" for number in range(MOST_CATEGORIES + 9) for _ in range(3)] + ["c072"] * 9
    frame = pd.DataFrame({"code": codes, "y": np.arange(len(codes)) % 2})
    column = Schema.of(frame, Columns("y")).columns[0]
    assert (column.usual, len(column.categories), column.width) == ("c072", MOST_CATEGORIES, MOST_CATEGORIES + 1)
    assert "c062" in column.categories
    assert "c063" not in column.categories


def test_hashed_text() -> None:
    notes = [f"note {number}" for number in range(39)] + [None]
    frame = pd.DataFrame({"note": notes, "y": np.arange(40) % 2})
    with pytest.raises(DataError, match="'note' is text with 39 different values in 39 rows; leave it out with --drop"):
        Schema.of(frame, Columns("y"))
    inputs = Schema.of(frame, Columns("y", hashed=("note",))).encode(frame)
    assert inputs.shape == (40, BUCKETS + 1)
    assert inputs[7, zlib.crc32(b"note 7") % BUCKETS] == 1
    assert inputs.sum() == 40
    assert inputs[39, BUCKETS] == 1


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (range(100, 140), "'x' numbers the rows; leave it out with --drop x"),
        ([1e300, *range(39)], "'x', row 1: '1e\\+300', which is too large"),
        ([None] * 40, "'x' has no value in the training rows"),
        ([[1, 2]] * 40, "'x' holds values of the type mixed"),
        ([b"x"] * 40, "'x' holds values of the type bytes"),
    ],
)
def test_columns_that_are_refused(values: Any, words: str) -> None:
    with pytest.raises(DataError, match=words):
        Schema.of(pd.DataFrame({"x": list(values), "y": [0, 1] * 20}), Columns("y"))


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        ([1] * 40, "'y', the label, has the value '1' only"),
        (np.linspace(0, 1, 40), "holds numbers such as 0.0256"),
        ([f"name {number}" for number in range(40)], "40 different values in 40 rows"),
    ],
)
def test_labels_that_are_refused(labels: Any, words: str) -> None:
    with pytest.raises(DataError, match=words):
        Schema.of(pd.DataFrame({"x": [1.0, 2.5] * 20, "y": labels}), Columns("y"))


def test_classes_are_sorted_as_what_they_are() -> None:
    def classes(*labels: Any) -> tuple[str, ...]:
        return Schema.of(pd.DataFrame({"x": np.arange(len(labels)), "y": labels}), Columns("y")).classes

    assert classes(10, 9, 10) == ("9", "10")
    assert classes(1.0, 0.0) == ("0", "1")
    assert classes(True, False) == ("False", "True")
    assert classes("no", "event") == ("event", "no")


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([1, None], "number"),
        ([Decimal("1.5"), Decimal(2)], "number"),
        (pd.array([1, None], dtype="Int64"), "number"),
        ([date(2026, 1, 1), None], "date"),
        (pd.to_datetime(["2026-01-01", None]), "date"),
        (pd.to_datetime(["2026-01-01T10:00+02:00", "2026-01-02T10:00+02:00"]), "date"),
        (["2026-01-01T10:00+02:00", "2026-01-02 11:00"], "date"),
        ([True, None], "boolean"),
        (pd.array([True, None], dtype="boolean"), "boolean"),
        (["x", None], "category"),
        (["2026-01-01", "soon"], "category"),
        ([1, "x"], "category"),
        (pd.Categorical([1, 2]), "category"),
    ],
)
def test_kinds(values: Any, kind: str) -> None:
    frame = pd.DataFrame({"x": values, "y": [0, 1]})
    schema = Schema.of(frame, Columns("y"))
    assert schema.columns[0].kind == kind
    assert np.isfinite(schema.encode(frame)).all()


def test_a_constant_column_is_zero() -> None:
    frame = pd.DataFrame({"x": [0.1] * 30, "y": [0, 1] * 15})
    assert np.abs(Schema.of(frame, Columns("y")).encode(frame)).max() < 1e-7
