"""Who takes part in a round, in which order samples are visited, and who fails: drawn from the seed (see `seeding`)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedsat.seeding import Indices, generator


def sample_clients(seed: int, round_number: int, clients: int, per_round: int) -> Indices:
    """S_t: the clients called in a round, uniformly without replacement."""
    rng = generator(seed, "clients", round_number)
    return rng.choice(clients, per_round, replace=False).astype(np.int64)


def sample_workers(seed: int, round_number: int, clients: int, called: Indices, workers: int) -> Indices:
    """W_{t,k} for every called client k: itself, then nodes outside S_t (SPEC §3). One row per client.

    Nodes are dealt from one shuffled pool; when it runs out it is refilled and reshuffled, so the load on
    nodes differs by at most one round of dealing. A set never holds a node twice: with fewer than
    `workers − 1` nodes outside S_t all of them are taken.
    """
    rng = generator(seed, "workers", round_number)
    outside = np.setdiff1d(np.arange(clients, dtype=np.int64), called)
    others = min(workers - 1, len(outside))
    pool = rng.permutation(outside)
    rows = np.empty((len(called), others + 1), dtype=np.int64)
    rows[:, 0] = called
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
    """The order in which a client visits its samples: one permutation per local epoch."""
    rng = generator(seed, "batches", round_number, client)
    return np.stack([rng.permutation(size) for _ in range(epochs)]).astype(np.int64)


def crops_and_flips(seed: int, round_number: int, client: int, size: int, epochs: int, pad: int) -> NDArray[np.uint8]:
    """The augmentation of every visit of a sample: row and column offset of the crop, and whether it is mirrored."""
    rng = generator(seed, "augment", round_number, client)
    offsets = rng.integers(0, 2 * pad + 1, (epochs, size, 2), dtype=np.uint8)
    return np.concatenate([offsets, rng.integers(0, 2, (epochs, size, 1), dtype=np.uint8)], axis=2)


def draw_attackers(seed: int, clients: int, share: float) -> Indices:
    """The malicious clients of a run, in ascending order: fixed for the run, the nearest whole number to the share."""
    rng = generator(seed, "attackers")
    return np.sort(rng.permutation(clients)[: round(share * clients)]).astype(np.int64)


def which_respond(seed: int, round_number: int, called: Indices, dropout: float) -> NDArray[np.bool_]:
    """Which of the called clients answer: each fails with probability `dropout`, on its own."""
    return _spared(dropout, called, seed, "dropout of clients", round_number)


def which_workers_respond(seed: int, round_number: int, workers: Indices, dropout: float) -> NDArray[np.bool_]:
    """Which workers report on which client (rows); the client itself, in the first column, has answered already.

    A node that is out of reach is so for the whole round, whomever it was asked about.
    """
    nodes, places = np.unique(workers, return_inverse=True)
    reports = _spared(dropout, nodes, seed, "dropout of workers", round_number)[places].reshape(workers.shape)
    reports[:, 0] = True
    return reports


def local_epochs(seed: int, round_number: int, client: int, epochs: int, stragglers: float) -> int:
    """The epochs that a client gets done: all, or for a straggler some number below, each as likely."""
    if _spared(stragglers, np.array([client]), seed, "stragglers", round_number)[0]:
        return epochs
    return int(generator(seed, "epochs of stragglers", round_number, client).integers(1, epochs))


def _spared(share: float, nodes: Indices, seed: int, purpose: str, round_number: int) -> NDArray[np.bool_]:
    """Which nodes a misfortune that meets this share of them does not meet."""
    if not share:
        return np.ones(len(nodes), dtype=np.bool_)
    draws = [generator(seed, purpose, round_number, node).random() for node in nodes.tolist()]
    return np.array(draws) >= share
