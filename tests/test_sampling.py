"""Sampling is a pure function of (seed, round), even, and never draws a node twice into one set."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsat.sampling import batch_order, crops_and_flips, generator, sample_clients, sample_workers


def test_clients_are_distinct_and_depend_on_seed_and_round_alone() -> None:
    first = sample_clients(0, 1, 100, 15)
    assert len(set(first.tolist())) == 15
    sample_clients(9, 9, 50, 7)
    assert np.array_equal(first, sample_clients(0, 1, 100, 15))
    assert not np.array_equal(first, sample_clients(0, 2, 100, 15))
    assert not np.array_equal(first, sample_clients(1, 1, 100, 15))


def test_purposes_have_generators_of_their_own() -> None:
    assert generator(0, "clients", 1).integers(2**60) != generator(0, "workers", 1).integers(2**60)


@settings(max_examples=60, deadline=None)
@given(clients=st.integers(1, 60), share=st.floats(0.01, 1), workers=st.integers(1, 20), seed=st.integers(0, 2**40))
def test_worker_sets(clients: int, share: float, workers: int, seed: int) -> None:
    called = sample_clients(seed, 1, clients, max(1, int(share * clients)))
    rows = sample_workers(seed, 1, clients, called, workers)
    outside = clients - len(called)
    assert rows.shape == (len(called), 1 + min(workers - 1, outside))
    assert np.array_equal(rows[:, 0], called)
    for row in rows:
        assert len(set(row.tolist())) == len(row)
        assert not set(row[1:].tolist()) & set(called.tolist())
    if outside:
        load = np.bincount(rows[:, 1:].flatten(), minlength=clients)[np.setdiff1d(np.arange(clients), called)]
        assert load.max() - load.min() <= 1
    assert np.array_equal(rows, sample_workers(seed, 1, clients, called, workers))


def test_the_papers_setting_needs_refills() -> None:
    # 15 clients × 14 further workers = 210 places for 85 nodes: each is used two or three times.
    rows = sample_workers(0, 1, 100, sample_clients(0, 1, 100, 15), 15)
    load = np.bincount(rows[:, 1:].flatten())
    assert set(load[load > 0].tolist()) == {2, 3}


def test_batches_visit_every_sample_once_an_epoch() -> None:
    order = batch_order(0, 3, 7, 11, 4)
    assert [sorted(epoch) for epoch in order.tolist()] == [list(range(11))] * 4
    assert len({tuple(epoch) for epoch in order.tolist()}) == 4
    assert np.array_equal(order, batch_order(0, 3, 7, 11, 4))
    assert not np.array_equal(order, batch_order(0, 3, 8, 11, 4))


def test_crops_stay_within_the_padding() -> None:
    drawn = crops_and_flips(0, 1, 2, 500, 2, pad=4)
    assert drawn.shape == (2, 500, 3)
    assert set(np.unique(drawn[..., :2])) == set(range(9))
    assert drawn[..., 2].mean() == pytest.approx(0.5, abs=0.1)
