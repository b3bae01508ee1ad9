"""Lanes: which client of a round trains where and when.

The stacked engine trains L clients at once, one a lane. Clients differ in their number of steps; padding all to
the longest would waste most of the work. So a lane whose client is done takes the next one, longest first, and
when none is left the lane closes: lanes are numbered by their load, so that the ones still open are always the
first ones, and the step simply becomes narrower.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from fedsat.seeding import Indices

Kind = TypeVar("Kind", bound=np.generic)


@dataclass(frozen=True)
class Seat:
    """A client (by its place in the round) in a lane, from step `begin` to before step `end`."""

    client: int
    lane: int
    begin: int
    end: int


@dataclass(frozen=True)
class Stretch:
    """Steps `begin` to before `end` that the lanes 0 … width−1 take together without a change of clients."""

    begin: int
    end: int
    width: int
    entering: tuple[Seat, ...]
    """Clients that take their lane at `begin`."""
    leaving: tuple[Seat, ...]
    """Clients that are done at `end`."""


def seat_clients(steps: Sequence[int], lanes: int) -> list[Seat]:
    """Put clients on lanes, the one with most steps first, each on the lane that is free earliest."""
    loads = np.zeros(min(lanes, len(steps)), dtype=np.int64)
    taken: list[tuple[int, int, int]] = []
    for client in sorted(range(len(steps)), key=lambda k: -steps[k]):
        lane = int(loads.argmin())
        taken.append((client, lane, int(loads[lane])))
        loads[lane] += steps[client]
    rank = {int(lane): place for place, lane in enumerate(np.argsort(-loads, kind="stable"))}
    return [Seat(client, rank[lane], begin, begin + steps[client]) for client, lane, begin in taken]


def stretches(seats: Sequence[Seat]) -> Iterator[Stretch]:
    """The round as a sequence of stretches between changes of clients."""
    ends = sorted({seat.end for seat in seats})
    for begin, end in zip([0, *ends], ends, strict=False):
        here = [seat for seat in seats if seat.begin <= begin < seat.end]
        entering = tuple(sorted((seat for seat in here if seat.begin == begin), key=lambda seat: seat.lane))
        leaving = tuple(sorted((seat for seat in here if seat.end == end), key=lambda seat: seat.lane))
        yield Stretch(begin, end, len(here), entering, leaving)


def batch_rows(order: Indices, batch_size: int) -> Indices:
    """The batches of visits [E, n] as rows [steps, B].

    An epoch's last batch is filled up with its first visit, marked as padding by being written as ~index (which is
    negative): whatever is computed of padding is computed of a sample that the client really has.
    """
    epochs, size = order.shape
    batches = -(-size // batch_size)
    rows = np.repeat(~order[:, :1], batches * batch_size, axis=1)
    rows[:, :size] = order
    return rows.reshape(epochs * batches, batch_size)


def lane_table(seats: Sequence[Seat], rows: Sequence[NDArray[Kind]], fill: int) -> NDArray[Kind]:
    """What each lane takes at each step, [steps, L, …], from each client's rows [steps of the client, …]."""
    lanes = 1 + max(seat.lane for seat in seats)
    length = max(seat.end for seat in seats)
    table = np.full((length, lanes, *rows[0].shape[1:]), fill, dtype=rows[0].dtype)
    for seat in seats:
        table[seat.begin : seat.end, seat.lane] = rows[seat.client]
    return table
