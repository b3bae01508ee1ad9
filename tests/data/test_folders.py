"""A user's own data: arrays and folders of images, and the errors for invalid ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedsat import data
from fedsat.data.folders import load_folder
from fedsat.errors import DataError, UsageError

RNG = np.random.default_rng(1)


def save(folder: Path, **arrays: object) -> str:
    folder.mkdir(exist_ok=True)
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", np.asarray(array))
    return str(folder)


def picture(path: Path, mode: str = "L", size: tuple[int, int] = (4, 3), value: int = 7) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, value if mode == "L" else (value, value + 1, value + 2)).save(path)


@pytest.mark.parametrize(
    ("shape", "expected"),
    [((12, 5, 6), (1, 5, 6)), ((12, 5, 6, 1), (1, 5, 6)), ((12, 5, 6, 3), (3, 5, 6)), ((12, 3, 5, 6), (3, 5, 6))],
)
def test_image_layouts(tmp_path: Path, shape: tuple[int, ...], expected: tuple[int, ...]) -> None:
    images = RNG.integers(0, 256, shape, dtype=np.uint8)
    labels = [0, 1] * 6
    dataset = data.load(save(tmp_path, images=images, labels=labels, test_images=images, test_labels=labels))
    assert dataset.input_shape == expected
    assert dataset.class_names == ("0", "1")
    assert dataset.note == ""
    channel = images[:, 0] if shape[1] == 3 else images.reshape(12, 5, 6, -1)[..., 0]
    np.testing.assert_array_equal(dataset.train.images[:, 0], channel)


def test_numbers_of_any_shape_stay_float32(tmp_path: Path) -> None:
    table = RNG.normal(size=(12, 7))
    dataset = data.load(save(tmp_path, images=table, labels=[0.0, 1.0, 2.0] * 4))
    assert dataset.train.images.dtype == np.float32
    assert dataset.input_shape == (7,)
    assert dataset.classes == 3


def test_a_sixth_is_held_out(tmp_path: Path) -> None:
    labels = np.repeat([0, 1, 2], [60, 6, 1])
    images = np.arange(67, dtype=np.float32)[:, None]
    folder = save(tmp_path, images=images, labels=labels)
    dataset = data.load(folder, seed=4)
    assert np.bincount(dataset.test.labels, minlength=3).tolist() == [10, 1, 0]
    together = np.concatenate([dataset.train.images, dataset.test.images])
    assert sorted(together[:, 0].tolist()) == images[:, 0].tolist()
    assert "11 of 67 samples are held out (seed 4)" in dataset.note
    again, other = data.load(folder, seed=4), data.load(folder, seed=5)
    np.testing.assert_array_equal(again.test.images, dataset.test.images)
    assert not np.array_equal(other.test.images, dataset.test.images)


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"images": np.zeros((4, 2, 2), np.uint8)}, r"labels\.npy is missing"),
        ({"labels": [0, 1]}, r"images\.npy is missing"),
        ({"images": np.zeros((4, 2, 2), np.uint8), "labels": [0, 1, 0]}, "4 images but 3 labels"),
        ({"images": np.zeros((4, 2, 2), np.uint8), "labels": [0, 1, 0, -1]}, r"labels\.npy: label -1 of sample 3"),
        ({"images": np.zeros((4, 2, 2), np.uint8), "labels": [0, 1, 0, 1.5]}, r"labels\.npy: label 1\.5 of sample 3"),
        ({"images": np.zeros((4, 2, 2), np.uint8), "labels": [0, 3, 0, 1]}, "no sample has the label 2, but one has 3"),
        ({"images": np.zeros((4, 2, 2), np.uint8), "labels": [0, 2**30, 0, 1]}, "no sample has the label 2"),
        ({"images": np.zeros((4, 5, 5, 4), np.uint8), "labels": [0, 1, 0, 1]}, "1 or 3 channels"),
        ({"images": np.full((4, 2), np.nan), "labels": [0, 1, 0, 1]}, "image 0 holds a value that is not finite"),
        ({"images": np.full((4, 2), 1e300), "labels": [0, 1, 0, 1]}, "image 0 holds a value that is not finite"),
        ({"images": np.zeros(4), "labels": [0, 1, 0, 1]}, r"expected numbers \[samples, \.\.\.\]"),
        ({"images": np.array([["a"], ["b"]]), "labels": [0, 1]}, "expected numbers"),
        ({"images": np.zeros((2, 2)), "labels": [0, 1]}, "no class has two samples"),
        (
            {"images": np.zeros((2, 2)), "labels": [0, 1], "test_images": np.zeros((1, 2)), "test_labels": [2]},
            "a test label is 2",
        ),
        (
            {"images": np.zeros((2, 2)), "labels": [0, 1], "test_images": np.zeros((1, 2))},
            r"test_labels\.npy is missing",
        ),
    ],
)
def test_arrays_refused(tmp_path: Path, arrays: dict[str, object], words: str) -> None:
    with pytest.raises(DataError, match=words):
        data.load(save(tmp_path, **arrays))


def test_no_pickle_is_loaded(tmp_path: Path) -> None:
    folder = save(tmp_path, labels=[0, 1])
    np.save(tmp_path / "images.npy", np.array([{"a": 1}, None], dtype=object), allow_pickle=True)
    with pytest.raises(DataError, match=r"images\.npy: not a readable \.npy file"):
        data.load(folder)


@pytest.mark.parametrize("content", [b"", b"not an array", b"\x93NUMPY\x01\x00"])
def test_foreign_arrays(tmp_path: Path, content: bytes) -> None:
    folder = save(tmp_path, labels=[0, 1])
    (tmp_path / "images.npy").write_bytes(content)
    with pytest.raises(DataError, match=r"images\.npy: not a readable \.npy file"):
        data.load(folder)


def test_grey_images(tmp_path: Path) -> None:
    for name, value in (("dog", 10), ("cat", 20)):
        for number in range(6):
            picture(tmp_path / name / f"{number}.png", value=value)
    (tmp_path / "cat" / "notes.txt").write_text("not an image")
    (tmp_path / ".hidden").mkdir()
    dataset = data.load(str(tmp_path))
    assert dataset.class_names == ("cat", "dog")
    assert dataset.input_shape == (1, 3, 4)
    assert (len(dataset.train), len(dataset.test)) == (10, 2)
    assert {(int(x.max()), int(y)) for x, y in zip(dataset.train.images, dataset.train.labels, strict=True)} == {
        (20, 0),
        (10, 1),
    }


def test_train_and_test_folders_mixed_modes_and_formats(tmp_path: Path) -> None:
    picture(tmp_path / "train" / "a" / "0.png", "L", value=100)
    picture(tmp_path / "train" / "b" / "0.BMP", "RGB", value=50)
    picture(tmp_path / "test" / "b" / "1.png", "RGB", value=60)
    dataset = data.load(str(tmp_path))
    assert dataset.input_shape == (3, 3, 4)
    assert dataset.train.images[0, :, 0, 0].tolist() == [100, 100, 100]
    assert dataset.train.images[1, :, 0, 0].tolist() == [50, 51, 52]
    assert dataset.test.images[0, :, 0, 0].tolist() == [60, 61, 62]
    assert dataset.test.labels.tolist() == [1]
    assert dataset.note == ""


def test_sizes_that_differ(tmp_path: Path) -> None:
    for name in ("a", "b"):
        for number in range(2):
            picture(tmp_path / name / f"{number}.png", size=(4, 3))
    picture(tmp_path / "b" / "2.png", size=(5, 3))
    with pytest.raises(DataError, match=r"a.0\.png is 4×3 but .*b.2\.png is 5×3; .*image_size"):
        data.load(str(tmp_path))
    assert data.load(str(tmp_path), image_size=8).input_shape == (1, 8, 8)


def test_image_folders_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"neither images\.npy and labels\.npy nor a folder"):
        data.load(str(tmp_path))
    picture(tmp_path / "train" / "a" / "0.png")
    (tmp_path / "train" / "b").mkdir()
    with pytest.raises(DataError, match="the class b has no image file"):
        data.load(str(tmp_path))
    (tmp_path / "train" / "b" / "0.jpg").write_bytes(b"not a picture")
    with pytest.raises(DataError, match=r"0\.jpg: not a readable image"):
        data.load(str(tmp_path))
    picture(tmp_path / "train" / "b" / "0.jpg")
    (tmp_path / "test" / "c").mkdir(parents=True)
    with pytest.raises(DataError, match=r"test.c: there is no class of that name"):
        data.load(str(tmp_path))
    with pytest.raises(UsageError, match="image_size is 0"):
        data.load(str(tmp_path), image_size=0)


def test_truncated_image(tmp_path: Path) -> None:
    for name in ("a", "b"):
        path = tmp_path / name / "0.png"
        path.parent.mkdir()
        Image.fromarray(RNG.integers(0, 256, (30, 30), dtype=np.uint8)).save(path)
    path.write_bytes(path.read_bytes()[:400])
    with pytest.raises(DataError, match=r"b.0\.png: not a readable image"):
        data.load(str(tmp_path))


def test_a_share_of_a_federation_may_lack_classes(tmp_path: Path) -> None:
    names = ("ant", "bee", "cat", "dog")
    arrays = save(tmp_path / "arrays", images=RNG.normal(size=(12, 5)), labels=[1, 3] * 6)
    for number in range(4):
        picture(tmp_path / "pictures" / "dog" / f"{number}.png")
        picture(tmp_path / "pictures" / "bee" / f"{number}.png")
    for folder in (Path(arrays), tmp_path / "pictures"):
        share = load_folder(folder, class_names=names)
        assert share.class_names == names
        assert set(share.train.labels.tolist()) == {1, 3}
    with pytest.raises(DataError, match="no sample has the label 0"):
        load_folder(Path(arrays))
    with pytest.raises(DataError, match="the federation has no class of that name"):
        load_folder(tmp_path / "pictures", class_names=names[:3])
    with pytest.raises(DataError, match="a training label is 3"):
        load_folder(Path(arrays), class_names=names[:3])


def test_a_file_that_is_no_dataset_is_named(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("text")
    with pytest.raises(DataError, match=r"notes.txt cannot be read as a dataset; give a .csv, .parquet or .npz file"):
        data.load(str(path))
