"""Splits by class: test samples if there is no test set, validation samples, and a test set for each client."""

from __future__ import annotations

import numpy as np

from fedsat.seeding import Indices, generator

HELD_OUT = 1 / 6
"""The share of samples that is held out for testing if there is no test set, as in MNIST and CIFAR."""


def hold_out(
    labels: Indices, seed: int, *, share: float = HELD_OUT, purpose: str = "hold-out", owners: Indices | None = None
) -> tuple[Indices, Indices]:
    """Return indices to train and to test on: a share of each class is held out, at least one sample if it has two.

    `purpose` distinguishes parts that are held out of the same samples for different reasons. With `owners`, the client
    of each sample, every client keeps a sample.
    """
    counts = np.bincount(labels)
    quota = np.clip(np.round(counts * share), 1, np.maximum(counts - 1, 0)).astype(np.int64)
    kept, held = take_from_each_class(labels, quota, generator(seed, purpose))
    if owners is None:
        return kept, held
    robbed = ~np.isin(owners[held], owners[kept])
    back = held[robbed][np.unique(owners[held[robbed]], return_index=True)[1]]
    return np.sort(np.concatenate([kept, back])), np.setdiff1d(held, back)


def hold_out_for_validation(labels: Indices, share: float, seed: int, client: int) -> tuple[Indices, Indices]:
    """Return indices to train on and indices for validation among a client's samples.

    The share of all samples is rounded, and so is that of each class, up or down; which classes are rounded up is drawn
    among those with the largest remainders. Each class keeps at least one sample to train on.
    """
    rng = generator(seed, "validation", client)
    counts = np.bincount(labels)
    wanted, room = share * counts, np.maximum(counts - 1, 0)
    quota = np.minimum(np.floor(wanted), room).astype(np.int64)
    rest = np.where(quota < room, wanted - quota, 0.0)
    first = np.lexsort((rng.permutation(len(counts)), -rest))
    missing = min(int(np.rint(wanted.sum())) - int(quota.sum()), int((rest > 0).sum()))
    quota[first[:missing]] += 1
    return take_from_each_class(labels, quota, rng)


def sample_by_class(labels: Indices, size: int, rng: np.random.Generator) -> Indices:
    """Return `size` indices at random, as many of each class as its share asks for (largest remainders).

    How many there are of each class does not depend on `rng`.
    """
    wanted = size * np.bincount(labels) / len(labels)
    quota = np.floor(wanted).astype(np.int64)
    first = np.argsort(quota - wanted, kind="stable")
    quota[first[: size - int(quota.sum())]] += 1
    return take_from_each_class(labels, quota, rng)[1]


def take_from_each_class(labels: Indices, quota: Indices, rng: np.random.Generator) -> tuple[Indices, Indices]:
    """Return the indices that stay and those that are taken: as many of each class as `quota` has, at random."""
    counts = np.bincount(labels)
    shuffled = rng.permutation(len(labels))
    by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
    first = np.cumsum(counts) - counts
    rank = np.arange(len(labels)) - first[labels[by_class]]
    taken = rank < quota[labels[by_class]]
    return np.sort(by_class[~taken]), np.sort(by_class[taken])


def divide_among_clients(labels: Indices, class_mixes: Indices, seed: int) -> Indices:
    """Return the client of each sample, so that clients get samples in the mix of their class counts [N, m].

    The shuffled samples of each class are split at the rounded cumulative shares of the clients, taken in random order.
    Samples of a class that no client has get the number N.
    """
    rng = generator(seed, "test split")
    clients = len(class_mixes)
    owners = np.full(len(labels), clients, dtype=np.int64)
    for label, counts in enumerate(class_mixes.T):
        samples, order = rng.permutation(np.flatnonzero(labels == label)), rng.permutation(clients)
        if counts.any():
            ends = np.rint(len(samples) * np.cumsum(counts[order]) / counts.sum())
            owners[samples] = order[np.searchsorted(ends, np.arange(len(samples)), side="right")]
    return owners
