"""Partitions that give clients different class mixes: label skew (LS), with missing classes (LSMC), and with quantity
skew as well (LQSMC).

All of them draw once and repair the result, instead of drawing again until it fits. The time is therefore bounded for
every β and every number of clients.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray

from fedsat.data.partition import Beta, Partition, apportion, dirichlet, distribute, partitions
from fedsat.errors import UsageError
from fedsat.options import Option
from fedsat.seeding import Indices

Skew = Annotated[float, Option("Dirichlet parameter of the shares of the classes; smaller is more uneven", above=0)]
Holdings = NDArray[np.bool_]
"""Which classes each client holds, [clients, classes]."""
Shares = NDArray[np.float64]
"""Share of each class that goes to each client, [clients, classes]; 0 where the client does not hold it."""
FITTING_TURNS = 60


@partitions.register("ls")
@dataclass(frozen=True)
class LabelSkew(Partition):
    """Label skew: for each class, shares of the clients ~ Dirichlet(β), balanced as in NIID-Bench."""

    beta: Beta = 0.3
    balanced: Annotated[bool, Option("give no more classes to clients that have reached the mean size n/N")] = True

    def owners(self, labels: Indices, classes: int, clients: int, rng: np.random.Generator) -> Indices:
        """Split one class after another, then move samples from the largest clients to empty ones."""
        owners = np.empty(len(labels), np.int64)
        sizes = np.zeros(clients, np.int64)
        for label in range(classes):
            samples = rng.permutation(np.flatnonzero(labels == label))
            shares = dirichlet(rng, self.beta, clients)
            if self.balanced:
                shares = _masked(shares, sizes < len(labels) / clients)
            counts = apportion(len(samples), shares)
            owners[samples] = np.repeat(np.arange(clients), counts)
            sizes += counts
        return fill_empty(owners, clients, rng)


partitions.alias("dirichlet", of="ls")


@partitions.register("lsmc")
@dataclass(frozen=True)
class LabelSkewMissingClasses(Partition):
    """Label skew with missing classes: every client holds exactly C classes, in uneven proportions."""

    classes_per_client: Annotated[int, Option("C, the number of classes each client holds", at_least=1)] = 2
    skew: Skew = 0.5
    sizes: Annotated[
        Literal["even", "skewed"],
        Option(
            "clients of about equal size (even), or of the sizes that result from their shares of the classes (skewed)"
        ),
    ] = "even"

    def owners(self, labels: Indices, classes: int, clients: int, rng: np.random.Generator) -> Indices:
        """Choose the classes of each client, then split each class among its clients."""
        counts = np.bincount(labels, minlength=classes)
        held = hold_exactly(self.classes_per_client, counts, clients, rng)
        if self.sizes == "skewed":
            return share_out(labels, held, draw_shares(held, self.skew, rng), rng)
        mixes = draw_shares(held.T, self.skew, rng).T
        sizes = np.full(clients, len(labels) / clients)
        return share_out(labels, held, fit_sizes(mixes, held, counts, sizes), rng)


@partitions.register("lqsmc")
@dataclass(frozen=True)
class LabelQuantitySkewMissingClasses(Partition):
    """Label and quantity skew with missing classes: C to m classes per client, more samples with more classes."""

    classes_per_client: Annotated[int, Option("the smallest number of classes a client holds", at_least=1)] = 2
    skew: Skew = 0.5

    def owners(self, labels: Indices, classes: int, clients: int, rng: np.random.Generator) -> Indices:
        """Assign the minimum number of classes, add more as long as there are samples, and split each class.

        Sizes are about proportional to the number of classes; the skew is between a client's classes.
        """
        counts = np.bincount(labels, minlength=classes)
        held = hold_exactly(self.classes_per_client, counts, clients, rng)
        wanted = rng.integers(self.classes_per_client, classes + 1, size=clients)
        rank = np.argsort(
            np.argsort(rng.random(held.shape) + ~held, axis=1), axis=1
        )  # classes that the client already holds come first
        extra = (rank < wanted[:, None]) & ~held
        for label, room in enumerate(counts - held.sum(axis=0)):
            takers = np.flatnonzero(extra[:, label])
            if len(takers) > room:  # a class cannot have more clients than samples
                extra[rng.permutation(takers)[room:], label] = False
        held |= extra
        sizes = held.sum(axis=1) * (len(labels) / held.sum())
        shares = fit_sizes(draw_shares(held, self.skew, rng), held, counts, sizes)
        return share_out(labels, held, shares, rng)


def _masked(shares: NDArray[np.float64], open_: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return the shares of the clients that are not full, with sum 1."""
    kept = shares * open_
    if kept.sum() == 0:  # with a small β, all may go to clients that are full
        kept = open_.astype(np.float64) if open_.any() else np.ones(len(shares))
    return np.asarray(kept / kept.sum())


def fill_empty(owners: Indices, clients: int, rng: np.random.Generator) -> Indices:
    """Move a random sample from the currently largest client to each empty one."""
    sizes = np.bincount(owners, minlength=clients)
    empty = np.flatnonzero(sizes == 0)
    if not len(empty):
        return owners
    shuffled = rng.permutation(len(owners))
    order = shuffled[np.argsort(owners[shuffled], kind="stable")]
    ends = np.cumsum(sizes)
    heap = [(-size, client) for client, size in enumerate(sizes.tolist())]
    heapq.heapify(heap)
    for client in empty:
        size, largest = heap[0]
        owners[order[ends[largest] - 1]] = client
        ends[largest] -= 1
        heapq.heapreplace(heap, (size + 1, largest))
    return owners


def hold_exactly(each: int, counts: Indices, clients: int, rng: np.random.Generator) -> Holdings:
    """Choose exactly `each` classes for every client at random; all classes have equally many clients."""
    classes = len(counts)
    if each > classes:
        raise UsageError(f"a client cannot hold {each} classes: there are {classes}")
    if clients * each < classes:
        raise UsageError(
            f"{clients} clients with {each} classes each cannot hold all {classes} classes;"
            f" use at least {-(-classes // each)} clients, or classes_per_client ≥ {-(-classes // clients)}"
        )
    holders = spread(clients * each, np.minimum(counts, clients), rng)
    # Classes are assigned in turn, so the clients of a class are distinct: it has at most `clients` of them.
    deck = rng.permutation(classes)
    rows = np.repeat(deck, holders[deck]).reshape(each, clients).T
    rows = trade(rows, rng)
    held = np.zeros((clients, classes), np.bool_)
    held[np.arange(clients)[:, None], rows] = True
    return held


def spread(total: int, limits: Indices, rng: np.random.Generator) -> Indices:
    """Return the number of clients of each class: `total` in all, as even as the limits allow, remainders at random."""
    if limits.sum() < total:
        short = int(np.argmin(limits))
        raise UsageError(
            f"{total:,} places (clients × classes per client) need a sample each, but the classes can fill only"
            f" {limits.sum():,} (class {short} only {limits[short]:,});"
            " use fewer clients or fewer classes per client"
        )
    given = np.zeros_like(limits)
    while (left := total - int(given.sum())) > 0:
        room = np.flatnonzero(given < limits)
        if left < len(room):
            given[rng.permutation(room)[:left]] += 1
        else:
            given[room] = np.minimum(given[room] + left // len(room), limits[room])
    return given


def trade(rows: Indices, rng: np.random.Generator) -> Indices:
    """Shuffle the assignment, keeping each client's number of classes and each class's number of clients.

    In each round, clients form random pairs, and each pair redistributes at random the classes that only one of the two
    holds ("curveball" trades). After a few times log₂ N rounds, every client has traded, indirectly, with every other.
    """
    clients, each = rows.shape
    half = clients // 2
    for _ in range(4 + 2 * clients.bit_length()):
        order = rng.permutation(clients)
        first, second = order[:half], order[half : 2 * half]
        table = np.sort(np.concatenate([rows[first], rows[second]], axis=1), axis=1)
        twin = table[:, 1:] == table[:, :-1]
        key = rng.random(table.shape)
        key[:, :-1][twin] = -1.0  # if both hold a class, one copy goes to the first client
        key[:, 1:][twin] = 2.0  # and the other to the second
        table = np.take_along_axis(table, np.argsort(key, axis=1), axis=1)
        rows[first], rows[second] = table[:, :each], table[:, each:]
    return rows


def draw_shares(held: Holdings, skew: float, rng: np.random.Generator) -> Shares:
    """Draw the shares of each column's holders ~ Dirichlet(`skew`); columns sum to 1."""
    shares = np.zeros(held.shape)
    for label in range(held.shape[1]):
        holders = np.flatnonzero(held[:, label])
        shares[holders, label] = dirichlet(rng, skew, len(holders))
    return shares


def fit_sizes(shares: Shares, held: Holdings, counts: Indices, sizes: NDArray[np.float64]) -> Shares:
    """Scale shares, row by row and column by column in turn, until clients have about these sizes.

    Iterative proportional fitting keeps the odds ratios of the draw, and therefore its skew. Not every set of sizes is
    possible; after a bounded number of iterations, the nearest result is used.
    """
    amounts = np.where(held, np.maximum(shares, 1e-9), 0)
    for _ in range(FITTING_TURNS):
        amounts *= counts / amounts.sum(axis=0)  # classes last, so that every sample is assigned
        found = amounts.sum(axis=1)
        if np.abs(found - sizes).max() < 0.01 * sizes.min():
            break
        amounts *= (sizes / found)[:, None]
    return np.asarray(amounts / amounts.sum(axis=0))


def share_out(labels: Indices, held: Holdings, shares: Shares, rng: np.random.Generator) -> Indices:
    """Split each class among its clients: one sample each, and the others in proportion to the shares."""
    counts = held.astype(np.int64)
    for label, samples in enumerate(np.bincount(labels, minlength=held.shape[1])):
        holders = np.flatnonzero(held[:, label])
        counts[holders, label] += apportion(samples - len(holders), shares[holders, label])
    return distribute(labels, counts, rng)
