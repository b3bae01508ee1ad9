"""Hugging Face datasets: objects, and datasets saved on disk, which are read like those of the hub."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import fedsat
from fedsat import data
from fedsat.data import Columns, as_dataset, hub
from fedsat.errors import DataError, UsageError

datasets = pytest.importorskip("datasets", reason="datasets is not installed: pip install 'fedsat[hf]'")

RUN: dict[str, Any] = {"rounds": 2, "epochs": 1, "device": "cpu", "algorithm": "fedavg"}


def grey(number: int, side: int = 6) -> Image.Image:
    return Image.fromarray(np.full((side, side), number, np.uint8))


def pictures(count: int, first: int = 0, side: int = 6) -> Any:
    """Pictures whose grey value is their number, of two classes, from two sites."""
    numbers = range(first, first + count)
    features = datasets.Features(
        {
            "image": datasets.Image(),
            "label": datasets.ClassLabel(names=["cat", "dog"]),
            "site": datasets.Value("string"),
        }
    )
    columns = {
        "image": [grey(number, side) for number in numbers],
        "label": [number % 2 for number in numbers],
        "site": ["north" if number % 3 else "south" for number in numbers],
    }
    return datasets.Dataset.from_dict(columns, features=features)


def splits() -> Any:
    return datasets.DatasetDict({"train": pictures(30), "validation": pictures(6, 30), "test": pictures(10, 50)})


def test_pictures_and_classes() -> None:
    made = as_dataset(splits(), name="pets")
    assert (made.name, made.class_names, len(made.test)) == ("pets", ("cat", "dog"), 10)
    assert made.train.images[:, 0, 0, 0].tolist() == list(range(36))
    assert made.test.images[:, 0, 0, 0].tolist() == list(range(50, 60))
    assert made.note == "pets: 6 validation samples are added to the training samples"
    assert as_dataset(splits(), image_size=4).input_shape == (1, 4, 4)


def test_a_dataset_on_disk_is_run_and_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    splits().save_to_disk(str(tmp_path / "pets"))
    monkeypatch.chdir(tmp_path)
    run = fedsat.run(dataset="hf:pets", client="site", out="run", **RUN)
    config = run.setup.config
    assert (config.clients, config.table()["partition"]["name"], config.dataset) == (2, "natural", "hf:pets")
    assert run.setup.federation is not None
    assert run.setup.federation.sizes.tolist() == [24, 12]  # north, south
    assert fedsat.resume("run", rounds=3).training.rounds == 3
    pictures(30).save_to_disk(str(tmp_path / "alone"))
    made = data.load("hf:alone")
    assert (len(made.train), len(made.test)) == (26, 4)


def table(count: int, names: bool = True) -> Any:
    label = datasets.ClassLabel(names=["well", "ill"]) if names else datasets.Value("int64")
    features = datasets.Features({"age": datasets.Value("float64"), "ward": datasets.Value("string"), "target": label})
    numbers = range(count)
    columns = {"age": [40.0 + n % 7 for n in numbers], "ward": ["ab"[n % 2] for n in numbers],
               "target": [n % 3 // 2 for n in numbers]}  # fmt: skip
    return datasets.Dataset.from_dict(columns, features=features)


def test_other_datasets_are_tables() -> None:
    made = as_dataset(datasets.DatasetDict({"train": table(30), "valid": table(6), "test": table(9)}))
    assert made.schema is not None
    assert (made.class_names, len(made.train), len(made.test)) == (("ill", "well"), 36, 9)
    assert [column.kind for column in made.schema.columns] == ["number", "category"]
    assert "6 validation samples are added" in made.note
    run = fedsat.run(dataset=table(60, names=False), partition="iid", clients=3, per_round=2, **RUN)
    assert (run.setup.config.model["name"], run.setup.engine.class_names) == ("tabular", ("0", "1"))


def test_defaults_of_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table(30).save_to_disk(str(tmp_path / "people"))
    monkeypatch.chdir(tmp_path)
    assert hub.outline("hf:people", Columns()) == (None, True)
    config = fedsat.configure(dataset="hf:people", client="ward")
    assert (config.model["name"], config.clients) == ("tabular", 2)


def test_arrays() -> None:
    features = datasets.Features({"signal": datasets.Array2D((2, 5), "float32"), "label": datasets.Value("int64")})
    values = np.random.default_rng(0).normal(size=(12, 2, 5)).astype(np.float32)
    made = as_dataset(datasets.Dataset.from_dict({"signal": values, "label": [0, 1] * 6}, features=features))
    assert made.input_shape == (1, 2, 5)
    assert {*made.train.images[:, 0, 0, 0].tolist()} <= {*values[:, 0, 0].tolist()}


def test_what_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="name the column to predict with --label; the columns are age, ward"):
        as_dataset(table(9).remove_columns("target"))
    with pytest.raises(UsageError, match="unknown column 'wards'; did you mean 'ward'"):
        as_dataset(table(9), columns=Columns(client="wards"))
    with pytest.raises(DataError, match=r"has the splits test; it needs 'train'"):
        hub._splits({"test": table(9)}, "pets")
    with pytest.raises(UsageError, match="drop and hashed are settings for tables"):
        as_dataset(pictures(9), columns=Columns(drop=("site",)))
    with pytest.raises(DataError, match=r"hf:.*nothing: cannot be loaded"):
        data.load(f"hf:{tmp_path}/nothing")
