"""Federations: the samples of each client, the summary by hand, and the plot."""

from __future__ import annotations

from dataclasses import replace
from math import exp, log, pi, sqrt
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedsat.data import Dataset, Federation, Partition, Split, Summary, draw
from fedsat.errors import DataError, UsageError


def dataset(labels: np.ndarray, classes: int) -> Dataset:
    split = Split(np.zeros((len(labels), 1), np.float32), labels)
    return Dataset("hand", split, split, tuple(f"class {c}" for c in range(classes)))


class Given(Partition):
    """Clients 1, 0, 1, 1, 0, 1."""

    def owners(self, labels, classes, clients, rng):
        return np.array([1, 0, 1, 1, 0, 1])


@pytest.fixture
def small() -> Federation:
    return Federation.build(dataset(np.array([0, 0, 1, 1, 0, 2]), 3), Given(), 2, 0)


def test_the_samples_of_each_client(small: Federation) -> None:
    assert small.clients == 2
    assert small.sizes.tolist() == [2, 4]
    assert small.indices(0).tolist() == [1, 4]
    assert small.indices(1).tolist() == [0, 2, 3, 5]
    assert small.class_counts.tolist() == [[2, 0, 0], [1, 2, 1]]
    assert small.class_counts.dtype == np.int64
    for client in (-1, 2):
        with pytest.raises(IndexError):
            small.indices(client)


def test_validation_is_set_aside(small: Federation) -> None:
    # A third: 2/3 of the two samples of client 0, and of client 1 only class 1 has a sample to spare (4/3 in all).
    split = small.with_validation(1 / 3, seed=0)
    assert [len(own) for own in split.validation] == [1, 1]
    assert split.class_counts.tolist() == [[1, 0, 0], [1, 1, 1]]
    assert split.class_mixes.tolist() == small.class_counts.tolist() == small.class_mixes.tolist()
    assert split.sizes.tolist() == [1, 3]
    for client in range(2):
        assert split.worker_indices(client).tolist() == split.validation[client].tolist()
        assert small.worker_indices(client).tolist() == small.indices(client).tolist()
        both = [*split.indices(client), *split.validation[client]]
        assert sorted(both) == small.indices(client).tolist()
    assert small.with_validation(0.0, seed=0) is small
    assert split.fingerprint != small.fingerprint


def test_summary_by_hand(small: Federation) -> None:
    summary = small.summary()
    assert (summary.clients, summary.samples) == (2, 6)
    assert (summary.size.low, summary.size.median, summary.size.high) == (2, 3, 4)
    assert (summary.classes_held.low, summary.classes_held.high) == (1, 3)
    # Client 0 has one class; client 1 has the mix ¼, ½, ¼, with entropy ½ log 4 + ½ log 2.
    assert summary.effective_classes.low == pytest.approx(1)
    assert summary.effective_classes.high == pytest.approx(exp(0.5 * log(4) + 0.5 * log(2)))
    assert (summary.largest_share.low, summary.largest_share.high) == (0.5, 1)
    assert (summary.imbalance.low, summary.imbalance.high) == (1, 2)
    # The whole has ½, ⅓, ⅙: distances (½ + ⅓ + ⅙)/2 = ½ and (¼ + ⅙ + 1/12)/2 = ¼.
    assert summary.skew == pytest.approx((0.5 + 0.25) / 2)
    assert (summary.class_size.low, summary.class_size.median, summary.class_size.high) == (1, 2, 3)
    assert (summary.holders.low, summary.holders.high) == (1, 2)


@pytest.mark.parametrize("partition", ["iid", "quantity", "ls", "lsmc", "lqsmc", "hsu", "shards"])
def test_compressed_form(partition: str) -> None:
    labels = np.random.default_rng(0).integers(0, 5, 300)
    federation = Federation.build(dataset(labels, 5), partition, 30, 0)
    held = [federation.indices(k) for k in range(30)]
    assert sorted(np.concatenate(held).tolist()) == list(range(300))
    for client, indices in enumerate(held):
        assert (np.diff(indices) > 0).all()
        assert np.bincount(labels[indices], minlength=5).tolist() == federation.class_counts[client].tolist()


def test_the_fingerprint_knows_every_sample_and_its_owner() -> None:
    labels = np.arange(12) % 3
    train, test = (np.arange(24, dtype=np.float32).reshape(12, 2) + shift for shift in (0, 50))

    def fingerprint(train: np.ndarray, test: np.ndarray, seed: int = 0) -> str:
        whole = Dataset("hand", Split(train, labels), Split(test, labels), ("a", "b", "c"))
        return Federation.build(whole, "iid", 3, seed).fingerprint

    one_other = train.copy()
    one_other[7, 1] += 1
    assert fingerprint(train, test) == fingerprint(train.copy(order="F"), test)
    others = [fingerprint(one_other, test), fingerprint(train, test[::-1]), fingerprint(train, test, seed=1)]
    assert len({fingerprint(train, test), *others}) == 4


def test_even_shares_have_no_skew() -> None:
    federation = Federation.build(dataset(np.arange(6), 6), "iid", 1, 0)
    summary = federation.summary()
    assert summary.skew == 0
    assert summary.effective_classes.median == pytest.approx(6)


@pytest.mark.parametrize(("clients", "classes"), [(1, 1), (10, 10), (100, 10), (500, 10), (50, 100)])
def test_picture(tmp_path: Path, clients: int, classes: int) -> None:
    """The plot is a PNG of reasonable size that is not blank."""
    labels = np.arange(3000) % classes
    federation = Federation.build(dataset(labels, classes), "ls", clients, 0)
    path = draw(federation, tmp_path / "new" / "picture.png", "a title")
    with Image.open(path) as picture:
        assert picture.format == "PNG"
        assert 500 < picture.width < 3000
        assert 400 < picture.height < 2000
        pixels = np.asarray(picture.convert("L"))
    assert 0.002 < (pixels < 200).mean() < 0.9


def test_picture_that_cannot_be_written(tmp_path: Path, small: Federation) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UsageError, match="cannot write the plot"):
        draw(small, tmp_path / "file" / "picture.png")


def test_rare_classes_are_not_reported() -> None:
    """Client 0 has classes 0 0 0 1 1 2, client 1 has 0 2 2 2."""
    labels = np.array([0, 0, 0, 1, 1, 2, 0, 2, 2, 2])
    whole = Federation(dataset(labels, 3), np.arange(10), np.array([0, 6, 10]))
    assert whole.reported_indices(0).tolist() == whole.worker_indices(0).tolist() == [0, 1, 2, 3, 4, 5]
    federation = replace(whole, report_at_least=3)
    assert federation.reported_indices(0).tolist() == [0, 1, 2]
    assert federation.reported_indices(1).tolist() == [7, 8, 9]
    assert federation.class_mixes.tolist() == [[3, 2, 1], [1, 0, 3]]
    assert federation.reported_mixes.tolist() == [[3, 0, 0], [0, 0, 3]]


def test_samples_of_workers() -> None:
    """Of client 0's classes 0 0 0 0 1 1 1 2, four samples are two of class 0, one or two of class 1, none of class 2.

    4 · (4, 3, 1) / 8 = (2, 1.5, 0.5): the fourth sample goes to class 1, the first of those with the largest remainder.
    """
    labels = np.array([0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 2])
    whole = Federation(dataset(labels, 3), np.arange(11), np.array([0, 8, 11]), seed=5)
    assert whole.judging_indices(0).tolist() == list(range(8))
    federation = replace(whole, worker_samples=4)
    taken = federation.judging_indices(0)
    assert labels[taken].tolist() == [0, 0, 1, 1]
    assert taken.tolist() == federation.judging_indices(0).tolist()
    assert federation.judging_indices(1).tolist() == [8, 9, 10]
    assert federation.reported_indices(0).tolist() == list(range(8))
    assert any(taken.tolist() != replace(federation, seed=s).judging_indices(0).tolist() for s in range(5))
    rare = replace(federation, worker_samples=3, report_at_least=2)  # (1.5, 1.125, 0.375) becomes (2, 1, 0)
    assert labels[rare.judging_indices(0)].tolist() == [0, 0]


def test_chance_skew_by_hand() -> None:
    """Two equally frequent classes and 100 samples: each share deviates by √(2/π · 0.25/100) on average."""
    assert Summary.of(np.full((3, 2), 50)).chance == pytest.approx(sqrt(2 / pi * 0.25 / 100))
    assert Summary.of(np.array([[3, 1], [0, 0]])).skew == 0  # clients without samples do not count
    assert Summary.of(np.array([[3, 1]])).balance == pytest.approx(exp(0.75 * log(4 / 3) + 0.25 * log(4)))
    with pytest.raises(DataError, match="no client has a sample"):
        Summary.of(np.zeros((2, 2), int))
