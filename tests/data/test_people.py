"""Common objects and files: torchvision, MedMNIST, Hugging Face, data frames, pictures of different sizes."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Subset, TensorDataset

import fedsat
from fedsat import data
from fedsat.data import Dataset, as_dataset
from fedsat.errors import DataError, UsageError

RUN: dict[str, Any] = {"rounds": 2, "epochs": 1, "device": "cpu", "algorithm": "fedavg", "per_round": 2}
CLASSES = ["owl", "cat", "dog"]


def pixels(count: int, seed: int = 0, side: int = 6) -> Any:
    """Grey pictures whose brightness depends on the class, and the classes."""
    rng, y = np.random.default_rng(seed), np.arange(count) % 3
    return (rng.integers(0, 60, (count, side, side)) + 90 * y[:, None, None]).clip(0, 255).astype(np.uint8), y


class LikeTorchvision:
    """Like torchvision's datasets: `classes`, and pairs of a picture and a number."""

    classes = CLASSES

    def __init__(self, count: int = 60, sides: tuple[int, ...] = (6,), mode: str = "L") -> None:
        self.pictures = [pixels(count, side=side)[0] for side in sides]
        self.mode = mode

    def __len__(self) -> int:
        return len(self.pictures[0])

    def __getitem__(self, index: int) -> tuple[Any, int]:
        each = self.pictures[index % len(self.pictures)][index]
        return Image.fromarray(each).convert(self.mode), index % 3


class LikeMedMNIST(LikeTorchvision):
    """Like the datasets of the package medmnist: labels [1], and names in `info`."""

    classes = None
    info: ClassVar[Any] = {"label": {"0": "adipose", "1": "debris", "2": "mucus"}}

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        picture, label = super().__getitem__(index)
        return picture, np.array([label])


def test_a_dataset_of_torchvision_has_its_pictures_and_classes() -> None:
    x, y = pixels(60)
    made = as_dataset({"train": LikeTorchvision(), "test": LikeTorchvision(9)})
    assert (made.name, made.class_names, len(made.test)) == ("LikeTorchvision", tuple(CLASSES), 9)
    np.testing.assert_array_equal(made.train.images[:, 0], x)
    np.testing.assert_array_equal(made.train.labels, y)
    assert as_dataset(LikeTorchvision(mode="RGBA")).input_shape == (3, 6, 6)
    part = as_dataset(Subset(LikeTorchvision(), range(30)))
    assert (part.name, part.class_names, len(part.train)) == ("LikeTorchvision", tuple(CLASSES), 24)
    assert as_dataset(part) is part


def test_pictures_of_different_sizes_need_a_size() -> None:
    mixed = LikeTorchvision(sides=(6, 40, 50))
    with pytest.raises(DataError, match=r"sample 0 is 6×6 but .*sample 1 is 40×40; .*3 sizes.*image_size, such as 32"):
        as_dataset(mixed)
    assert as_dataset(mixed, image_size=8).input_shape == (1, 8, 8)
    arrays = TensorDataset(*(torch.from_numpy(part) for part in pixels(30)))
    with pytest.raises(UsageError, match="not images, so image_size cannot"):
        as_dataset(arrays, image_size=8)


def test_a_run_takes_a_torch_dataset() -> None:
    run = fedsat.run(dataset=LikeTorchvision(), partition="iid", clients=4, out=None, **RUN)
    assert run.setup.engine.class_names == tuple(CLASSES)
    made = as_dataset(LikeTorchvision())
    assert run.setup.config.table()["dataset"] == made.reference != as_dataset(LikeTorchvision(57)).reference


def test_datasets_of_medmnist() -> None:
    made = as_dataset(LikeMedMNIST())
    assert made.class_names == ("adipose", "debris", "mucus")
    assert made.train.labels.ndim == 1


def medmnist(path: Path, **changes: Any) -> Path:
    """Write a file of MedMNIST's layout."""
    arrays: dict[str, Any] = {}
    for part, count in (("train", 60), ("val", 9), ("test", 12)):
        x, y = pixels(count, seed=count)
        arrays |= {f"{part}_images": np.stack([x, x, x], axis=-1), f"{part}_labels": y[:, None]}
    np.savez_compressed(path, **{key: value for key, value in {**arrays, **changes}.items() if value is not None})
    return path


def test_files_of_medmnist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = data.load(str(medmnist(tmp_path / "tissues.npz")))
    assert (len(made.train), len(made.test), made.input_shape) == (69, 12, (3, 6, 6))
    assert made.note == "tissues.npz: 9 validation samples are added to the training samples"
    assert (made.name, made.class_names) == ("tissues.npz", ("0", "1", "2"))
    assert np.array_equal(made.train.images[60:, 1], pixels(9, seed=9)[0])
    monkeypatch.chdir(tmp_path)
    run = fedsat.run(dataset="tissues.npz", partition="iid", clients=4, out="run", **RUN)
    assert "9 validation samples" in run.notes[0]
    medmnist(tmp_path / "tissues.npz", test_labels=np.ones((12, 1), np.int64))
    with pytest.raises(UsageError, match="the data, or their partition, have changed"):
        fedsat.resume("run", rounds=3)


def test_files_without_a_test_set_and_of_other_layouts(tmp_path: Path) -> None:
    bare = medmnist(tmp_path / "bare.npz", **dict.fromkeys(
        ("val_images", "val_labels", "test_images", "test_labels")))  # fmt: skip
    made = data.load(str(bare))
    assert (len(made.train), len(made.test)) == (51, 9)
    assert "9 of 60 samples are held out" in made.note
    x, y = pixels(60)
    np.savez(tmp_path / "keras.npz", x_train=x, y_train=y, x_test=x[:6], y_test=y[:6])
    assert len(data.load(str(tmp_path / "keras.npz")).test) == 6


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"train_labels": np.zeros((60, 14))}, "train: every sample has 14 labels"),
        ({"train_images": None}, "expected train_images and train_labels or x_train and y_train"),
        ({"train_images": np.zeros((60, 8, 8, 8), np.uint8)}, "validation samples cannot be added"),
        ({"train_images": np.zeros((60, 8, 8, 8), np.uint8), "val_images": None}, "uint8 images need 1 or 3 channels"),
        ({"train_images": np.zeros((5, 6, 6, 3), np.uint8), "val_images": None}, "5 images but 60 labels"),
        ({"train_images": np.array([object()] * 60)}, "not a readable .npz file"),
    ],
)
def test_files_that_are_refused(tmp_path: Path, content: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        data.load(str(medmnist(tmp_path / "odd.npz", **content)))


def test_damaged_and_missing_files(tmp_path: Path) -> None:
    whole = medmnist(tmp_path / "whole.npz").read_bytes()
    (tmp_path / "cut.npz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"cut.npz: not a readable .npz file"):
        data.load(str(tmp_path / "cut.npz"))
    with pytest.raises(DataError, match="there is no file"):
        data.load(str(tmp_path / "none.npz"))
    with pytest.raises(UsageError, match="image_size is for folders"):
        data.load(str(tmp_path / "whole.npz"), image_size=4)


def frame(rows: int) -> Any:
    pd = pytest.importorskip("pandas", reason="pandas is not installed: pip install 'fedsat[tables]'")
    pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install 'fedsat[tables]'")
    number = np.arange(rows)
    columns = {"age": 40.0 + number % 7, "site": np.array(["n", "s", "w"])[number % 3], "ill": (number % 4) > 1}
    return pd.DataFrame(columns)


def test_a_run_takes_a_data_frame() -> None:
    run = fedsat.run(dataset=frame(90), label="ill", client="site", **RUN)
    config = run.setup.config
    assert (config.clients, config.model["name"], config.label) == (3, "tabular", None)
    assert run.setup.inputs.schema is not None
    assert run.setup.inputs.schema.label == "ill"
    with pytest.raises(UsageError, match="name the column to predict"):
        fedsat.run(dataset=frame(90), **RUN)


def test_a_data_frame_may_have_a_test_set() -> None:
    train, test = frame(30), frame(12).drop(columns="site").assign(age=90.0)
    made = as_dataset({"train": train, "test": test}, columns=data.Columns("ill", "site"))
    assert (len(made.train), len(made.test), made.clients, made.note) == (30, 12, 3, "")
    assert made.schema is not None
    assert made.schema.columns[0].mean == pytest.approx(train["age"].mean())  # not of the test rows
    with pytest.raises(DataError, match="the test set has no column 'age'"):
        Dataset.from_table(train, test=test.drop(columns="age"), label="ill", client="site")
    with pytest.raises(UsageError, match="test is for data frames"):
        Dataset.from_table("a.csv", test=test, label="ill")


def test_what_cannot_become_a_dataset() -> None:
    with pytest.raises(DataError, match="it needs 'train'"):
        as_dataset({"test": LikeTorchvision()})
    with pytest.raises(DataError, match="a mapping with 'extra'"):
        as_dataset({"train": LikeTorchvision(), "extra": 1})
    with pytest.raises(UsageError, match="label is a setting for tables"):
        fedsat.run(dataset=LikeTorchvision(), label="ill", **RUN)
    with pytest.raises(DataError, match="expected a pair"):
        fedsat.run(dataset=7, **RUN)
