"""Random choices of a round, drawn from the seed (see `seeding`): clients, workers, batches, and faults."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedsat.seeding import Indices, generator


def sample_clients(seed: int, round_number: int, clients: int, per_round: int) -> Indices:
    """Return S_t, the clients of a round, sampled uniformly without replacement."""
    rng = generator(seed, "clients", round_number)
    return rng.choice(clients, per_round, replace=False).astype(np.int64)


def sample_workers(seed: int, round_number: int, clients: int, sampled: Indices, workers: int) -> Indices:
    """Return W_{t,k} for every sampled client k, one row per client: the client, then nodes outside S_t.

    Nodes are drawn from one shuffled pool, which is refilled and reshuffled when it is empty, so the load of any two
    nodes differs by at most one. A row never contains a node twice: with fewer than `workers − 1` nodes outside S_t, it
    contains all of them.
    """
    rng = generator(seed, "workers", round_number)
    outside = np.setdiff1d(np.arange(clients, dtype=np.int64), sampled)
    others = min(workers - 1, len(outside))
    pool = rng.permutation(outside)
    rows = np.empty((len(sampled), others + 1), dtype=np.int64)
    rows[:, 0] = sampled
    for row in rows:
        taken, pool = pool[:others], pool[others:]
        if len(taken) < others:
            refill = rng.permutation(np.setdiff1d(outside, taken))
            missing = others - len(taken)
            pool = rng.permutation(np.concatenate([taken, refill[missing:]]))
            taken = np.concatenate([taken, refill[:missing]])
        row[1:] = taken
    return rows


def batch_order(seed: int, round_number: int, client: int, size: int, epochs: int) -> Indices:
    """Return the order in which a client visits its samples: one permutation per local epoch."""
    rng = generator(seed, "batches", round_number, client)
    return np.stack([rng.permutation(size) for _ in range(epochs)]).astype(np.int64)


def crops_and_flips(seed: int, round_number: int, client: int, size: int, epochs: int, pad: int) -> NDArray[np.uint8]:
    """Return the augmentation of every visit of a sample: row offset, column offset, and whether to mirror."""
    rng = generator(seed, "augment", round_number, client)
    offsets = rng.integers(0, 2 * pad + 1, (epochs, size, 2), dtype=np.uint8)
    return np.concatenate([offsets, rng.integers(0, 2, (epochs, size, 1), dtype=np.uint8)], axis=2)


def draw_attackers(seed: int, clients: int, share: float) -> Indices:
    """Return the malicious clients of a run in ascending order; their number is the rounded share."""
    rng = generator(seed, "attackers")
    return np.sort(rng.permutation(clients)[: round(share * clients)]).astype(np.int64)


def which_respond(seed: int, round_number: int, sampled: Indices, dropout: float) -> NDArray[np.bool_]:
    """Return which sampled clients respond; each fails independently with probability `dropout`."""
    return _spared(dropout, sampled, seed, "dropout of clients", round_number)


def which_workers_respond(seed: int, round_number: int, workers: Indices, dropout: float) -> NDArray[np.bool_]:
    """Return which workers report on which client (rows); the client itself, in the first column, always does.

    A node that does not respond is missing for the whole round, for every client it was assigned to.
    """
    nodes, places = np.unique(workers, return_inverse=True)
    reports = _spared(dropout, nodes, seed, "dropout of workers", round_number)[places].reshape(workers.shape)
    reports[:, 0] = True
    return reports


def local_epochs(seed: int, round_number: int, client: int, epochs: int, stragglers: float) -> int:
    """Return the number of epochs (or steps) that a client completes: all, or fewer for a straggler (uniform)."""
    if _spared(stragglers, np.array([client]), seed, "stragglers", round_number)[0]:
        return epochs
    return int(generator(seed, "epochs of stragglers", round_number, client).integers(1, epochs))


def _spared(share: float, nodes: Indices, seed: int, purpose: str, round_number: int) -> NDArray[np.bool_]:
    """Return which nodes are spared from a fault that affects each with probability `share`."""
    if not share:
        return np.ones(len(nodes), dtype=np.bool_)
    draws = [generator(seed, purpose, round_number, node).random() for node in nodes.tolist()]
    return np.array(draws) >= share
