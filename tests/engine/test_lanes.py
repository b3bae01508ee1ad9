"""Lanes: every client trains once, all its steps in a row, and open lanes are always the first ones."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsat.engine.lanes import batch_rows, lane_table, seat_clients, seat_runs, stretches


@settings(max_examples=100, deadline=None)
@given(steps=st.lists(st.integers(1, 30), min_size=1, max_size=20), lanes=st.integers(1, 25))
def test_a_round_in_lanes(steps: list[int], lanes: int) -> None:
    seats = seat_clients(steps, lanes)
    assert sorted(seat.client for seat in seats) == list(range(len(steps)))
    taken = [0] * len(steps)
    inside: set[int] = set()
    for stretch in stretches(seats):
        inside |= {seat.client for seat in stretch.entering}
        here = [seat for seat in seats if seat.client in inside]
        assert sorted(seat.lane for seat in here) == list(range(stretch.width))
        assert stretch.width <= lanes
        for seat in here:
            taken[seat.client] += stretch.end - stretch.begin
        inside -= {seat.client for seat in stretch.leaving}
    assert taken == steps
    assert not inside


def test_longest_first_and_no_idle_lane() -> None:
    # Steps 5, 3, 2, 2 on two lanes: 5 in one, 3 + 2 in the other, then 2 more: 7 in all, not 5 + 3 + ….
    seats = seat_clients([2, 5, 3, 2], 2)
    assert max(seat.end for seat in seats) == 7
    assert [(s.begin, s.end, s.width) for s in stretches(seats)] == [(0, 3, 2), (3, 5, 2), (5, 7, 1)]


def test_runs_take_turns_in_the_lanes() -> None:
    # Run 0 has clients 0 and 1 in lanes 0 and 2, run 1 has client 2 in lane 1; lane 3 is idle.
    seats = seat_runs([[2, 3], [4]], 2)
    assert sorted((s.client, s.lane, s.begin, s.end) for s in seats) == [(0, 2, 0, 2), (1, 0, 0, 3), (2, 1, 0, 4)]
    assert [(s.begin, s.end, s.width) for s in stretches(seats, 2)] == [(0, 2, 4), (2, 3, 2), (3, 4, 2)]
    rows = [np.full((steps, 1), client) for client, steps in enumerate((2, 3, 4))]
    assert lane_table(seats, rows, -1, 2)[..., 0].tolist() == [[1, 2, 0, -1]] * 2 + [[1, 2, -1, -1], [-1, 2, -1, -1]]


def test_padding_repeats_a_sample_of_the_batch_marked() -> None:
    rows = batch_rows(np.array([[7, 3, 9], [9, 7, 3]]), 2)
    assert rows.tolist() == [[7, 3], [9, ~7], [9, 7], [3, ~9]]


def test_tables_put_each_clients_rows_on_its_lane() -> None:
    rows = [np.array([[1], [2]]), np.array([[5]])]
    assert lane_table(seat_clients([2, 1], 2), rows, -1)[..., 0].tolist() == [[1, 5], [2, -1]]
