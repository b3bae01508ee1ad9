"""A long tail of classes, and samples held out of the training set in place of the test set."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedsat
from fedsat.data import Dataset, Split, long_tailed, with_holdout
from fedsat.data.subsets import long_tail
from fedsat.errors import DataError, UsageError

COUNTS = st.lists(st.integers(1, 60), min_size=2, max_size=8)
MANY = settings(max_examples=60, deadline=None)


def numbered(counts: list[int], owners: np.ndarray | None = None) -> Dataset:
    """A dataset whose samples are their own numbers, negative ones in the test set."""
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(len(counts)), counts))
    images = np.arange(len(labels), dtype=np.float32)[:, None]
    names = tuple(map(str, range(len(counts))))
    return Dataset("numbered", Split(images, labels), Split(-1 - images, labels), names, owners=owners)


def sizes(split: Split, classes: int) -> list[int]:
    return np.bincount(split.labels, minlength=classes).tolist()


def test_long_tail_of_cifar10() -> None:
    """The class sizes of CIFAR-10-LT with imbalance 100 and 10, as its authors' code computes them."""
    counts = np.full(10, 5000)
    assert long_tail(counts, 100).tolist() == [5000, 2997, 1796, 1077, 645, 387, 232, 139, 83, 50]
    assert long_tail(counts, 10).tolist() == [5000, 3871, 2997, 2320, 1796, 1391, 1077, 834, 645, 500]


def test_long_tail_by_hand() -> None:
    """With imbalance 4, three classes have n, n/2 and n/4; the second one has only 10, so n is 20."""
    assert long_tail(np.array([40, 10, 40]), 4).tolist() == [20, 10, 5]
    assert long_tail(np.array([40, 40, 40]), 1000).tolist() == [40, 1, 1]


@given(COUNTS, st.floats(1, 1e6), st.integers(0, 9))
@MANY
def test_a_long_tail_is_a_part_of_the_training_set(counts: list[int], imbalance: float, seed: int) -> None:
    whole = numbered(counts)
    tailed = long_tailed(whole, imbalance, seed)
    assert sizes(tailed.train, len(counts)) == long_tail(np.array(counts), imbalance).tolist()
    kept = tailed.train.images[:, 0].astype(int)
    assert (np.diff(kept) > 0).all()
    assert (whole.train.labels[kept] == tailed.train.labels).all()
    assert tailed.test is whole.test


@given(COUNTS, st.floats(0.01, 0.99), st.integers(0, 9))
@MANY
def test_a_holdout_is_a_share_of_each_class(counts: list[int], share: float, seed: int) -> None:
    whole = numbered([*counts, 2])
    part = with_holdout(whole, share, seed)
    both = np.concatenate([part.train.images, part.test.images])
    assert sorted(both[:, 0].tolist()) == list(range(len(whole.train)))
    for size, held in zip([*counts, 2], sizes(part.test, len(counts) + 1), strict=True):
        assert held == (0 if size == 1 else min(max(1, round(size * share)), size - 1))


def test_other_seeds_keep_other_samples() -> None:
    whole = numbered([40, 40])
    for make, value in ((long_tailed, 4), (with_holdout, 0.5)):
        kept = [make(whole, value, seed).train.images.tolist() for seed in (0, 0, 1)]
        assert kept[0] == kept[1] != kept[2]


def test_samples_keep_their_clients() -> None:
    whole = numbered([30, 30], owners=np.arange(60) % 3)
    for part in (long_tailed(whole, 3, 0), with_holdout(whole, 0.2, 0)):
        assert part.owners is not None
        assert part.owners.tolist() == (part.train.images[:, 0].astype(int) % 3).tolist()


def test_what_is_impossible() -> None:
    with pytest.raises(UsageError, match="single class"):
        long_tailed(numbered([5]), 2, 0)
    with pytest.raises(DataError, match="set it to 0"):
        with_holdout(numbered([1, 1]), 0.2, 0)
    kept = long_tailed(numbered([20, 20]), 20, 0).train.images
    lost = np.setdiff1d(np.arange(40), kept)[0]
    alone = numbered([20, 20], owners=(np.arange(40) != lost).astype(np.int64))
    with pytest.raises(DataError, match=r"imbalance 20 leaves client 0 without a sample"):
        long_tailed(alone, 20, 0)
    for setting, words in (({"imbalance": 0.5}, "at least 1"), ({"holdout": 1.0}, "below 1")):
        with pytest.raises(UsageError, match=words):
            fedsat.configure(**setting)


def test_a_run_records_both(tmp_path: Path) -> None:
    config = fedsat.configure(imbalance=10, holdout=0.2, partition="iid", seed=3)
    dataset = config.load_dataset()
    plain = fedsat.configure(seed=3).load_dataset()
    assert sizes(dataset.train, 10)[0] > 8 * sizes(dataset.train, 10)[9]
    assert sizes(dataset.test, 10)[0] > 8 * sizes(dataset.test, 10)[9]  # the share is that of the long tail
    assert len(dataset.train) + len(dataset.test) < len(plain.train)
    assert dataset.note == "; ".join(
        [
            "imbalance 10: the classes have 592 to 59 training samples",
            f"holdout 0.2: {len(dataset.test)} of {len(dataset.test) + len(dataset.train):,} training samples "
            "replace the test set",
        ]
    )
    (tmp_path / "config.toml").write_text(config.to_toml())
    assert fedsat.Config.of(config.table()) == config
    assert "holdout = 0.2" in config.to_toml()
