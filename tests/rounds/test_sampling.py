"""Sampling is a pure function of seed and round, is even, and never draws a node twice into one set."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsat.rounds.sampling import (
    batch_order,
    crops_and_flips,
    draw_attackers,
    local_epochs,
    sample_clients,
    sample_workers,
    which_respond,
    which_workers_respond,
)
from fedsat.seeding import generator


def test_clients_are_distinct_and_depend_on_seed_and_round_alone() -> None:
    first = sample_clients(0, 1, 100, 15)
    assert len(set(first.tolist())) == 15
    sample_clients(9, 9, 50, 7)
    assert np.array_equal(first, sample_clients(0, 1, 100, 15))
    assert not np.array_equal(first, sample_clients(0, 2, 100, 15))
    assert not np.array_equal(first, sample_clients(1, 1, 100, 15))


def test_each_purpose_has_its_own_generator() -> None:
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


def test_attackers_are_fixed_by_the_seed_and_as_many_as_asked_for() -> None:
    assert len(draw_attackers(0, 100, 0.2)) == len(set(draw_attackers(0, 100, 0.2).tolist())) == 20
    assert draw_attackers(0, 100, 0.2).tolist() == draw_attackers(0, 100, 0.2).tolist()
    assert draw_attackers(0, 100, 0.2).tolist() != draw_attackers(1, 100, 0.2).tolist()
    assert [len(draw_attackers(0, 7, share)) for share in (0.0, 0.1, 0.5, 1.0)] == [0, 1, 4, 7]
    # A larger share adds to the attackers, so that shares can be compared.
    assert set(draw_attackers(0, 100, 0.1).tolist()) < set(draw_attackers(0, 100, 0.3).tolist())


def test_dropout_hits_clients_independently_with_the_given_probability() -> None:
    everyone = np.arange(4000)
    answer = which_respond(0, 1, everyone, 0.3)
    assert answer.mean() == pytest.approx(0.7, abs=0.03)
    assert np.array_equal(answer[[7, 40]], which_respond(0, 1, np.array([7, 40]), 0.3))
    assert not np.array_equal(answer, which_respond(0, 2, everyone, 0.3))
    assert which_respond(0, 1, everyone, 0.0).all()


def test_a_worker_that_does_not_respond_is_missing_for_all_clients() -> None:
    workers = np.array([[node, *range(100, 160)] for node in range(20)])
    reports = which_workers_respond(0, 1, workers, 0.5)
    assert reports[:, 0].all()
    assert (reports[:, 1:] == reports[0, 1:]).all()
    assert 0.3 < reports[0, 1:].mean() < 0.7
    assert which_workers_respond(0, 1, workers, 0.0).all()


def test_stragglers_do_one_to_all_but_one_epochs() -> None:
    epochs = [local_epochs(0, 1, client, 5, 0.5) for client in range(2000)]
    assert np.bincount(epochs)[1:] / 2000 == pytest.approx([0.125] * 4 + [0.5], abs=0.04)
    assert epochs[9] == local_epochs(0, 1, 9, 5, 0.5)
    assert {local_epochs(0, 1, client, 5, 0.0) for client in range(50)} == {5}
