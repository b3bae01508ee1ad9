"""Lanes: where and when each client of a round trains.

The stacked engine trains L clients at once, one per lane. Clients take different numbers of steps, and padding all of
them to the longest would waste most of the work. Therefore a lane that finishes a client takes the next one, longest
first. When no client is left, the lane closes. Lanes are sorted by their load, so the open lanes are always the first
ones and a step only becomes narrower.

R runs that train together have the same number of lanes each. Run r has the lanes r, R + r, 2 R + r and so on, so the
first lanes are always the same number of lanes of every run. A lane whose run has fewer clients left than another run
is idle: it computes, but nothing reads its results.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from fedsat.seeding import Indices

Kind = TypeVar("Kind", bound=np.generic)


@dataclass(frozen=True)
class Seat:
    """A client (by its position in the round) in a lane, from step `begin` up to but excluding step `end`."""

    client: int
    lane: int
    begin: int
    end: int


@dataclass(frozen=True)
class Stretch:
    """Steps `begin` to `end` (exclusive) that lanes 0 … width−1 take without a change of clients."""

    begin: int
    end: int
    width: int
    entering: tuple[Seat, ...]
    """Clients that start at `begin`."""
    leaving: tuple[Seat, ...]
    """Clients that finish at `end`."""


def seat_clients(steps: Sequence[int], lanes: int) -> list[Seat]:
    """Assign clients to lanes, those with the most steps first, each to the lane that is free first."""
    loads = np.zeros(min(lanes, len(steps)), dtype=np.int64)
    taken: list[tuple[int, int, int]] = []
    for client in sorted(range(len(steps)), key=lambda k: -steps[k]):
        lane = int(loads.argmin())
        taken.append((client, lane, int(loads[lane])))
        loads[lane] += steps[client]
    rank = {int(lane): place for place, lane in enumerate(np.argsort(-loads, kind="stable"))}
    return [Seat(client, rank[lane], begin, begin + steps[client]) for client, lane, begin in taken]


def seat_runs(steps: Sequence[Sequence[int]], lanes: int) -> list[Seat]:
    """Assign the clients of several runs, counted over all runs, to lanes: `lanes` of them for each run."""
    seats: list[Seat] = []
    for run, own in enumerate(steps):
        first, runs = len(seats), len(steps)
        seats += [
            replace(seat, client=first + seat.client, lane=seat.lane * runs + run) for seat in seat_clients(own, lanes)
        ]
    return seats


def lanes_of(seats: Iterable[Seat], runs: int) -> int:
    """Return the number of lanes up to the last one with a client, a multiple of the number of runs."""
    return runs * (1 + max(seat.lane for seat in seats) // runs)


def stretches(seats: Sequence[Seat], runs: int = 1) -> Iterator[Stretch]:
    """Split the round into stretches between changes of clients."""
    ends = sorted({seat.end for seat in seats})
    for begin, end in zip([0, *ends], ends, strict=False):
        here = [seat for seat in seats if seat.begin <= begin < seat.end]
        entering = tuple(sorted((seat for seat in here if seat.begin == begin), key=lambda seat: seat.lane))
        leaving = tuple(sorted((seat for seat in here if seat.end == end), key=lambda seat: seat.lane))
        yield Stretch(begin, end, lanes_of(here, runs), entering, leaving)


def batch_rows(order: Indices, batch_size: int) -> Indices:
    """Arrange the visits [E, n] into batches, [steps, B].

    The last batch of an epoch is padded with its first visit, encoded as ~index (negative). Padding thus always refers
    to a sample that the client holds.
    """
    epochs, size = order.shape
    batches = -(-size // batch_size)
    rows = np.repeat(~order[:, :1], batches * batch_size, axis=1)
    rows[:, :size] = order
    return rows.reshape(epochs * batches, batch_size)


def lane_table(seats: Sequence[Seat], rows: Sequence[NDArray[Kind]], fill: int, runs: int = 1) -> NDArray[Kind]:
    """Return the entry of each lane at each step, [steps, L, …], from each client's rows [its steps, …]."""
    length = max(seat.end for seat in seats)
    table = np.full((length, lanes_of(seats, runs), *rows[0].shape[1:]), fill, dtype=rows[0].dtype)
    for seat in seats:
        table[seat.begin : seat.end, seat.lane] = rows[seat.client]
    return table
