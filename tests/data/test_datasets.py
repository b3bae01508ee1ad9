"""Datasets: checks, statistics, and the built-in dataset."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedsat import data
from fedsat.data import Dataset, Split, sources
from fedsat.data.builtin import FILE, make
from fedsat.data.catalog import DATASETS, Arrays, digest
from fedsat.errors import DataError, UsageError


def split(labels: list[int], images: np.ndarray | None = None) -> Split:
    if images is None:
        images = np.zeros((len(labels), 1, 2, 2), np.uint8)
    return Split(images, np.array(labels))


def test_mnist_mini() -> None:
    mini = data.load("mnist-mini")
    assert (len(mini.train), len(mini.test)) == (6000, 1000)
    assert mini.input_shape == (1, 28, 28)
    assert mini.train.images.dtype == np.uint8
    assert mini.train.labels.dtype == np.int64
    assert mini.class_names == tuple("0123456789")
    assert mini.mean == pytest.approx((0.1307,), abs=0.001)  # of MNIST as a whole
    assert mini.std == pytest.approx((0.3081,), abs=0.001)
    # A tenth of MNIST's 5923, 6742, … training and 980, 1135, … test images.
    assert np.bincount(mini.train.labels).tolist() == [592, 674, 596, 613, 584, 542, 592, 627, 585, 595]
    assert np.bincount(mini.test.labels).tolist() == [98, 114, 103, 101, 98, 89, 96, 103, 97, 101]


def test_mnist_mini_is_small() -> None:
    assert FILE.stat().st_size < 2_000_000


def test_mnist_mini_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = FILE.read_bytes()
    with np.load(FILE) as stored:
        arrays = dict(stored)
    arrays["test_labels"][0] ^= 1
    np.savez_compressed(tmp_path / "changed.npz", **arrays)
    (tmp_path / "cut.npz").write_bytes(whole[:1000])
    for name in ("changed.npz", "cut.npz", "missing.npz"):
        monkeypatch.setattr("fedsat.data.builtin.FILE", tmp_path / name)
        with pytest.raises(DataError, match=r"built-in mnist-mini is damaged .* install fedsat again"):
            data.load("mnist-mini")


def test_mnist_mini_can_be_made_again(official: Path) -> None:
    mnist = sources.from_folder(official, sources.ORIGINS["mnist"], DATASETS["mnist"])
    assert tuple(digest(array) for array in make.subset(mnist)) == DATASETS["mnist-mini"].sha256


def test_subset_is_stratified() -> None:
    labels = np.repeat(np.arange(3), [700, 200, 103]).astype(np.uint8)
    chosen = make.stratified(labels, 100, np.random.default_rng(0))
    assert np.bincount(labels[chosen]).tolist() == [70, 20, 10]
    assert len(np.unique(chosen)) == 100


def test_mean_and_deviation_by_hand() -> None:
    images = np.zeros((2, 2, 1, 2), np.uint8)
    images[:, 0] = [[[0, 255]], [[255, 0]]]  # mean 1/2, deviation 1/2
    images[:, 1] = 51  # constant: 51/255 = 0.2, deviation taken as 1
    dataset = Dataset("hand", split([0, 1], images), split([0, 1], images), ("a", "b"))
    assert dataset.mean == pytest.approx((0.5, 0.2))
    assert dataset.std == pytest.approx((0.5, 1.0))


def test_statistics_of_features() -> None:
    table = np.random.default_rng(0).normal([1, -5, 7], [2, 0.1, 0], (5000, 3)).astype(np.float32)
    dataset = Dataset("table", split([0, 1] * 2500, table), split([0, 1] * 2500, table), ("a", "b"))
    assert dataset.input_shape == (3,)
    assert dataset.mean == pytest.approx(table.astype(float).mean(0))
    assert dataset.std[:2] == pytest.approx(table.astype(float).std(0)[:2])
    assert dataset.std[2] == 1.0


@pytest.mark.parametrize(
    ("images", "labels", "words"),
    [
        (np.zeros((3, 1, 2, 2), np.uint8), [0, 1], "3 images but 2 labels"),
        (np.zeros((0, 1, 2, 2), np.uint8), [], "the dataset has no samples"),
        (np.zeros((2, 4), np.uint8), [0, 1], r"need the shape \[N, C, H, W\]"),
        (np.zeros((2, 4), np.float64), [0, 1], "images are float64"),
        (np.zeros((2, 4), np.float32), [0, -1], "label -1 of sample 1"),
        (np.zeros((2, 4), np.float32), [0.5, 1], "label 0.5 of sample 0"),
        (np.zeros((2, 4), np.float32), [0, np.nan], "label nan of sample 1"),
        (np.zeros((2, 4), np.float32), [[0, 1]], "expected one axis"),
        (np.zeros((2, 4), np.float32), ["cat", "dog"], "expected one axis of whole numbers"),
        (np.array([[0, 1], [2, np.inf]], np.float32), [0, 1], "image 1 holds a value that is not finite"),
    ],
)
def test_split_refuses(images: np.ndarray, labels: list, words: str) -> None:
    with pytest.raises(DataError, match=words):
        Split(images, np.array(labels, dtype=np.int64 if not labels else None))


def test_dataset_refuses() -> None:
    wide = split([0], np.zeros((1, 1, 2, 3), np.uint8))
    with pytest.raises(DataError, match=r"shape \[1, 2, 2\], test images \[1, 2, 3\]"):
        Dataset("d", split([0]), wide, ("a",))
    with pytest.raises(DataError, match="a test label is 2; with 2 classes labels run from 0 to 1"):
        Dataset("d", split([0, 1]), split([2]), ("a", "b"))
    with pytest.raises(DataError, match=r"class b \(label 1\) has no training sample"):
        Dataset("d", split([0, 2]), split([1]), ("a", "b", "c"))
    with pytest.raises(DataError, match="training images are uint8, test images float32"):
        Dataset("d", split([0]), split([0], np.zeros((1, 1, 2, 2), np.float32)), ("a",))


def test_load_refuses(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"unknown dataset 'cifar-10'; did you mean 'cifar10'\?"):
        data.load("cifar-10")
    with pytest.raises(DataError, match="there is no folder"):
        data.load(str(tmp_path / "nowhere"))
    with pytest.raises(UsageError, match="mnist-mini has images of size 28"):
        data.load("mnist-mini", image_size=32)


def test_catalog_is_consistent() -> None:
    for name, known in DATASETS.items():
        classes = {"cifar100": 100, "clinics-synthetic": 2}.get(name, 10)
        assert len(set(known.class_names)) == known.classes == classes
        assert all(len(value) == 64 for value in known.sha256)
    assert set(sources.ORIGINS) == {name for name, known in DATASETS.items() if not known.builtin}


def test_verify_names_shape_and_place(tiny: Arrays) -> None:
    with pytest.raises(DataError, match=r"here: train_images is uint8 \[20, 1, 28, 28\]; expected uint8 \[60000, 1,"):
        DATASETS["mnist"].verify(tiny, "here")
