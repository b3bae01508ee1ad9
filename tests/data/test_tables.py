"""Tables from files: formats, the test set, clients, and the errors for invalid files."""

from __future__ import annotations

import gzip
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedsat import data
from fedsat.data import Columns, Dataset, Federation
from fedsat.data.builtin import make_clinics
from fedsat.data.catalog import DATASETS
from fedsat.data.tables import count_clients, load_part
from fedsat.errors import DataError, UsageError
from fedsat.models import build_model

pd = pytest.importorskip("pandas", reason="pandas is not installed: pip install 'fedsat[tables]'")
pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install 'fedsat[tables]'")


def patients(rows: int = 60) -> Any:
    """Rows of three hospitals, one of them with a single row; every sixth row has the outcome."""
    number = np.arange(rows)
    hospital = np.where(number == 7, "west", np.where(number % 4 == 0, "east", "north"))
    return pd.DataFrame(
        {
            "hospital": hospital,
            "age": 40 + (number * 7) % 31,
            "ward": np.array(["a", "b", "c"])[number % 3],
            "ill": number % 5 == 0,
            "outcome": np.where(number % 6 == 0, "event", "none of it"),
        }
    )


def saved(path: Path, frame: Any = None, **options: Any) -> Path:
    frame = patients() if frame is None else frame
    if path.suffix == ".parquet":
        frame.to_parquet(path)
    else:
        frame.to_csv(path, index=False, **options)
    return path


COLUMNS = Columns("outcome", "hospital")


def test_every_form_gives_the_same_samples(tmp_path: Path) -> None:
    whole = Dataset.from_table(patients(), label="outcome", client="hospital")
    forms: dict[str, dict[str, Any]] = {
        "a.csv": {}, "b.csv": {"sep": ";"}, "c.csv": {"sep": "\t"}, "d.csv.gz": {}, "e.parquet": {},
        "f.csv": {"encoding": "utf-8-sig"},
    }  # fmt: skip
    for name, options in forms.items():
        made = data.load(str(saved(tmp_path / name, **options)), columns=COLUMNS)
        assert (made.name, made.schema, made.client_names) == (name, whole.schema, ("east", "north", "west"))
        assert np.array_equal(made.train.images, whole.train.images)
        assert np.array_equal(made.test.labels, whole.test.labels)
        assert np.array_equal(made.owners, whole.owners)


def test_a_fifth_of_each_class_is_held_out_and_clients_keep_a_row() -> None:
    for seed in range(8):
        dataset = Dataset.from_table(patients(), label="outcome", client="hospital", seed=seed)
        assert np.bincount(dataset.test.labels)[0] == 2  # of 10
        assert len(dataset.test) in (11, 12)  # of 60; the only row of west is not tested
        assert Federation.build(dataset, "natural", 3, 0).sizes[2] == 1
        assert "rows" not in dataset.note
        assert "of 60 samples are held out" in dataset.note


def test_inputs_are_normalised_once() -> None:
    """The schema normalises by the training rows, so engines multiply by 1 and add 0."""
    dataset = Dataset.from_table(patients(), label="outcome", drop=("hospital",))
    assert dataset.train.images[:, 0].mean() == pytest.approx(0, abs=1e-6)
    assert dataset.train.images[:, 0].std() == pytest.approx(1, abs=1e-6)
    assert (set(dataset.mean), set(dataset.std)) == ({0.0}, {1.0})


def test_a_column_may_say_which_rows_are_the_test_set(tmp_path: Path) -> None:
    frame = patients()
    for marks in (["train", "Test"], [0, 1], [False, True]):
        made = Dataset.from_table(frame.assign(part=np.array(marks)[np.arange(60) % 2]), label="outcome",
                                  client="hospital", test_column="part")  # fmt: skip
        assert (len(made.train), len(made.test), made.note) == (30, 30, "")
        assert made.client_names == ("east", "north")  # west has a test row only
    path = saved(tmp_path / "p.csv", frame.assign(part=np.arange(60) % 2))
    assert count_clients(path, Columns("outcome", "hospital", "part")) == 2
    assert count_clients(path, COLUMNS) == 3


def test_a_folder_of_files(tmp_path: Path) -> None:
    frame = patients()
    for name, rows in frame.groupby("hospital"):
        saved(tmp_path / f"{name}.csv", rows.drop(columns="hospital"))
    dataset = data.load(str(tmp_path), columns=Columns("outcome", "file"))
    assert dataset.client_names == ("east", "north", "west")
    assert dataset.schema is not None
    assert [column.name for column in dataset.schema.columns] == ["age", "ward", "ill"]
    saved(tmp_path / "south.csv", frame)
    with pytest.raises(DataError, match=r"south.csv has the column 'hospital', but east.csv does not"):
        data.load(str(tmp_path), columns=Columns("outcome"))


def test_clients_with_numbers_are_in_their_order() -> None:
    frame = patients().assign(hospital=np.where(np.arange(60) % 2, 10, 9))
    assert Dataset.from_table(frame, label="outcome", client="hospital").client_names == ("9", "10")


def test_a_node_reads_its_file_with_the_schema_of_the_federation(tmp_path: Path) -> None:
    schema = Dataset.from_table(patients(), label="outcome", drop=("hospital",)).schema
    assert schema is not None
    east = patients().query("hospital == 'east'")
    part = load_part(saved(tmp_path / "east.csv", east), Columns("outcome"), 0, schema)
    rows = np.concatenate([part.train.images, part.test.images])
    assert sorted(map(tuple, rows.tolist())) == sorted(map(tuple, schema.encode(east).tolist()))
    assert (part.class_names, part.schema) == (("event", "none of it"), schema)
    with pytest.raises(DataError, match=r"west.csv: column 'ward' \(category\) is missing"):
        load_part(saved(tmp_path / "west.csv", east.drop(columns="ward")), Columns("outcome"), 0, schema)


CSV = "age,ward,outcome\n" + "".join(f"{age},{'ab'[age % 2]},{age % 3 == 0}\n" for age in (30, 51, 47, 63, 70, 22))


@pytest.mark.parametrize(
    ("content", "columns", "words"),
    [
        ("", Columns("outcome"), "p.csv cannot be read: it is empty"),
        ("age,outcome\n", Columns("outcome"), "p.csv has no rows"),
        (CSV.replace("a,", "ä,").encode("latin-1"), Columns("outcome"), "p.csv is not UTF-8"),
        (CSV + "1,2,3,4,5\n", Columns("outcome"), "p.csv cannot be read: .*Expected 3 fields in line 8, saw 5"),
        ("age,outcome\n1,2,0\n2,3,1\n", Columns("outcome"), "its first row has 3 fields, its header 2"),
        ("age,age,outcome\n1,2,0\n", Columns("outcome"), "two columns are called 'age'"),
        (CSV, Columns(), "name the column to predict with --label; the columns are age, ward, outcome"),
        (CSV, Columns("outcom"), "unknown column 'outcom'; did you mean 'outcome'"),
        (CSV, Columns("outcome", client="hospital"), "unknown column 'hospital'"),
        (CSV, Columns("outcome", drop=("outcome",)), "column 'outcome' is named twice"),
        (CSV, Columns("outcome", drop=("age", "ward")), "no column besides age, outcome, ward"),
        (CSV, Columns("outcome", test_column="ward"), "column 'ward', row 1: 'a', it must say train or test"),
        (CSV + "1,,True\n", Columns("outcome", client="ward"), "column 'ward', row 7: the client is missing"),
        ("age,outcome\n1,0\n2,0\n3,0\n", Columns("outcome"), "'outcome', the label, has the value '0' only"),
        ("age,outcome\n1,0\n2,1\n", Columns("outcome"), "too few rows to hold some out"),
        ("age,h,outcome\n1,a,0\n2,b,0\n3,c,1\n5,d,1\n", Columns("outcome", "h"), "too few rows to hold some out"),
        ("age,part,outcome\n1,0,0\n2,0,1\n", Columns("outcome", test_column="part"), "every row into the training set"),
    ],
)
def test_files_refused(tmp_path: Path, content: str | bytes, columns: Columns, words: str) -> None:
    path = tmp_path / "p.csv"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises((DataError, UsageError), match=words) as caught:
        data.load(str(path), columns=columns)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


def test_damaged_and_missing_files(tmp_path: Path) -> None:
    whole = saved(tmp_path / "whole.parquet").read_bytes()
    for name, content in {"cut.parquet": whole[:-40], "no.parquet": b"x" * 50, "no.csv.gz": b"\x1f\x8bxxxxxx"}.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(DataError, match=f"{name} cannot be read"):
            data.load(str(tmp_path / name), columns=COLUMNS)
    with pytest.raises(DataError, match=r"nowhere.csv: there is no such file"):
        data.load("nowhere.csv", columns=COLUMNS)


def test_settings_of_tables_and_of_images_are_kept_apart(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"label is a setting for tables .*; mnist-mini is none"):
        data.load("mnist-mini", columns=Columns("outcome"))
    with pytest.raises(UsageError, match="is a table; image_size is for folders of image files"):
        data.load(str(saved(tmp_path / "p.csv")), columns=COLUMNS, image_size=8)


def test_without_pandas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = saved(tmp_path / "p.csv")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UsageError, match=r"tables need pyarrow; install it with pip install 'fedsat\[tables\]'"):
        data.load(str(path), columns=COLUMNS)


def test_clinics_synthetic() -> None:
    dataset, known = data.load("clinics-synthetic"), DATASETS["clinics-synthetic"]
    assert (len(dataset.train), len(dataset.test)) == (known.train_size, known.test_size)
    assert (dataset.input_shape, dataset.class_names) == (known.input_shape, known.class_names)
    assert dataset.client_names == tuple(make_clinics.CLINICS)
    counts = Federation.build(dataset, "natural", 8, 0).class_counts
    assert (counts > 0).all()
    assert counts.sum(0).tolist() == [179, 3827]
    assert make_clinics.FILE.stat().st_size < 300_000


def test_clinics_synthetic_can_be_made_again() -> None:
    assert gzip.decompress(make_clinics.content()) == gzip.decompress(make_clinics.FILE.read_bytes())


def test_the_built_in_table_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedsat.data.builtin.FOLDER", tmp_path)
    with pytest.raises(DataError, match="cannot be read"):
        data.load("clinics-synthetic")
    (tmp_path / "clinics-synthetic.csv.gz").write_bytes(b"other")
    with pytest.raises(DataError, match="is damaged; install fedsat again"):
        data.load("clinics-synthetic")


def test_other_networks_take_tables() -> None:
    dataset = Dataset.from_table(patients(), label="outcome", drop=("hospital",))
    assert build_model("mlp", dataset.input_shape, dataset.classes, 0)


def years(part: Dataset, split: data.Split) -> list[float]:
    """The ages, as they are in the table."""
    assert part.schema is not None
    age = part.schema.columns[0]
    assert age.name == "age"
    return (age.mean + age.deviation * split.images[:, 0].astype(float)).round(3).tolist()


@pytest.mark.parametrize(("make", "value"), [(data.with_holdout, 0.5), (data.long_tailed, 4)])
def test_a_part_of_a_table_has_the_schema_of_its_own_training_rows(make: Any, value: float) -> None:
    whole = Dataset.from_table(patients(), label="outcome", drop=("hospital",))
    part = make(whole, value, 0)
    assert len(part.train) < len(whole.train)
    assert (part.schema != whole.schema, part.class_names) == (True, whole.class_names)
    age = part.train.images[:, 0]
    assert (float(age.mean()), float(age.std())) == (pytest.approx(0, abs=1e-6), pytest.approx(1, abs=1e-6))
    if make is data.with_holdout:
        assert sorted(years(part, part.train) + years(part, part.test)) == sorted(years(whole, whole.train))
    else:
        assert years(part, part.test) == years(whole, whole.test)


def test_a_holdout_keeps_the_clients_of_a_table() -> None:
    whole = Dataset.from_table(patients(), label="outcome", client="hospital")
    part = data.with_holdout(whole, 0.5, 0)
    assert part.rows is not None
    assert part.owners is not None
    assert np.array(part.client_names)[part.owners].tolist() == part.rows.train["hospital"].tolist()
