"""Splits by class: quotas worked out by hand, and what holds for any labels."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsat.data.splits import divide_among_clients, hold_out, hold_out_for_validation


@given(st.lists(st.integers(1, 30), min_size=1, max_size=6), st.integers(0, 5))
@settings(max_examples=40, deadline=None)
def test_hold_out_by_class(counts: list[int], seed: int) -> None:
    labels = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(counts)), counts))
    train, test = hold_out(labels, seed)
    assert sorted([*train, *test]) == list(range(len(labels)))
    held = np.bincount(labels[test], minlength=len(counts))
    for count, out in zip(counts, held, strict=True):
        assert out == (0 if count == 1 else max(1, round(count / 6)))


@pytest.mark.parametrize(
    ("counts", "share", "wanted"),
    [
        # 3, 1.2, 0.3, 0 and 1.5 of 20 samples: 6 in all, and the one that rounding down leaves goes to the last class.
        ([10, 4, 1, 0, 5], 0.3, [3, 1, 0, 0, 2]),
        ([2], 0.9, [1]),  # one stays
        ([1], 0.9, [0]),
        ([1, 1, 6], 0.5, [0, 0, 3]),  # 4 of 8, but no class is used up, and none is rounded by more than one
        ([4], 0.1, [0]),  # 0.4 is rounded down
        ([6], 0.1, [1]),
    ],
)
def test_validation_by_hand(counts: list[int], share: float, wanted: list[int]) -> None:
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(len(counts)), counts))
    train, taken = hold_out_for_validation(labels, share, seed=3, client=7)
    assert sorted([*train, *taken]) == list(range(len(labels)))
    assert np.bincount(labels[taken], minlength=len(counts)).tolist() == wanted


@given(st.lists(st.integers(0, 30), min_size=1, max_size=6).filter(any), st.floats(0.01, 0.95), st.integers(0, 5))
@settings(max_examples=60, deadline=None)
def test_validation_is_as_even_as_rounding_allows(counts: list[int], share: float, seed: int) -> None:
    labels = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(counts)), counts))
    train, taken = hold_out_for_validation(labels, share, seed, 2)
    assert (np.diff(train) > 0).all()
    assert (np.diff(taken) > 0).all()
    assert sorted([*train, *taken]) == list(range(len(labels)))
    held = np.bincount(labels[taken], minlength=len(counts))
    for count, out in zip(counts, held, strict=True):
        assert abs(out - share * count) < 1 + 1e-9
        assert out < count or count == 0
    if min(counts) > 1 / (1 - share):  # every class has room
        assert abs(held.sum() - share * sum(counts)) <= 0.5 + 1e-9


def test_validation_is_a_function_of_seed_and_client() -> None:
    labels = np.arange(40) % 4

    def taken(seed: int, client: int) -> list[int]:
        return hold_out_for_validation(labels, 0.25, seed, client)[1].tolist()

    assert taken(1, 2) == taken(1, 2)
    assert len({tuple(taken(*place)) for place in ((1, 2), (1, 3), (2, 2))}) == 3


def test_which_classes_are_rounded_up_is_drawn() -> None:
    # Four classes of two samples at a quarter: half a sample each, two in all.
    labels = np.arange(8) % 4
    takens = [hold_out_for_validation(labels, 0.25, 0, client)[1] for client in range(50)]
    assert {len(taken) for taken in takens} == {2}
    assert (np.bincount(labels[np.concatenate(takens)], minlength=4) > 10).all()


def test_dividing_among_clients_by_hand() -> None:
    # Four samples of class 0 for clients with 3, 1 and 0 of it, two of class 1 for 0, 5 and 0, one of class 2 that
    # nobody has.
    labels = np.array([0, 1, 0, 2, 0, 1, 0])
    owners = divide_among_clients(labels, np.array([[3, 0, 0], [1, 5, 0], [0, 0, 0]]), seed=4)
    assert np.bincount(owners[labels == 0], minlength=4).tolist() == [3, 1, 0, 0]
    assert owners[labels == 1].tolist() == [1, 1]
    assert owners[labels == 2].tolist() == [3]  # N


def test_dividing_among_clients_keeps_their_mix() -> None:
    rng = np.random.default_rng(2)
    mixes, labels = rng.integers(0, 40, (12, 4)), rng.permutation(np.arange(400) % 4)
    owners = divide_among_clients(labels, mixes, seed=0)
    for label in range(4):
        counts = np.bincount(owners[labels == label], minlength=12)
        assert np.abs(counts - 100 * mixes[:, label] / mixes[:, label].sum()).max() < 1
    assert (owners == divide_among_clients(labels, mixes, seed=0)).all()
    assert (owners != divide_among_clients(labels, mixes, seed=1)).any()


def test_fewer_samples_than_clients() -> None:
    # One sample each for ten of forty equal clients, and which ones is drawn.
    takens = [divide_among_clients(np.zeros(10, np.int64), np.ones((40, 1), np.int64), seed) for seed in range(30)]
    assert all(len(set(owners)) == 10 and owners.max() < 40 for owners in takens)
    assert len(set(np.concatenate(takens))) == 40
