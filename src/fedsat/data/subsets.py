"""Datasets made from a part of another one: a long-tailed training set, or a holdout in place of the test set."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fedsat.data.datasets import Dataset
from fedsat.data.splits import hold_out
from fedsat.errors import DataError, UsageError
from fedsat.seeding import Indices, generator

ROUNDING = 1e-9
"""Added before rounding down, so that a size of 50 does not become 49."""


def long_tailed(dataset: Dataset, imbalance: float, seed: int) -> Dataset:
    """Return the dataset with a training set whose class sizes decline exponentially; the test set stays as it is.

    K. Cao, C. Wei, A. Gaidon, N. Arechiga, T. Ma: Learning imbalanced datasets with label-distribution-aware margin
    loss, NeurIPS 2019. `imbalance` is the ratio of the largest class, which is the first, to the smallest, the last.
    """
    if dataset.classes < 2:
        raise UsageError(f"imbalance is {imbalance:g}; {dataset.name} has a single class, so use 1")
    labels = dataset.train.labels
    sizes = long_tail(np.bincount(labels, minlength=dataset.classes), imbalance)
    shuffled = generator(seed, "imbalance").permutation(len(labels))
    kept = [shuffled[labels[shuffled] == label][:size] for label, size in enumerate(sizes)]
    note = f"imbalance {imbalance:g}: the classes have {sizes[0]:,} to {sizes[-1]:,} training samples"
    return _part(dataset, np.sort(np.concatenate(kept)), None, f"imbalance {imbalance:g}", note)


def long_tail(counts: Indices, imbalance: float) -> Indices:
    """Return n_c = n_max · IF^(−c/(m−1)), rounded down but at least 1, for the largest n_max that `counts` allow."""
    decline = imbalance ** (-np.arange(len(counts)) / (len(counts) - 1))
    largest = (counts / decline).min()
    sizes: Indices = np.maximum(1, np.floor(largest * decline + ROUNDING)).astype(np.int64)
    return sizes


def with_holdout(dataset: Dataset, share: float, seed: int) -> Dataset:
    """Return the dataset with a share of each class of its training set in place of the test set."""
    kept, held = hold_out(dataset.train.labels, seed, share=share, purpose="holdout", owners=dataset.owners)
    if not len(held):
        raise DataError(f"{dataset.name}: no class has two samples, so holdout is impossible; set it to 0")
    note = f"holdout {share:g}: {len(held):,} of {len(dataset.train):,} training samples replace the test set"
    return _part(dataset, kept, held, f"holdout {share:g}", note)


def _part(dataset: Dataset, kept: Indices, held: Indices | None, setting: str, note: str) -> Dataset:
    """Return the dataset with the training samples `kept`, those held out as test set (if any), and the note added.

    A table gets the schema of the remaining training rows, so that its statistics reveal nothing about the others.
    """
    owners = None if dataset.owners is None else dataset.owners[kept]
    if owners is not None:
        empty = np.flatnonzero(np.bincount(owners, minlength=dataset.clients or 0) == 0)
        if len(empty):
            raise DataError(f"{dataset.name}: {setting} leaves client {empty[0]} without a sample; use a smaller value")
    notes = "; ".join(text for text in (dataset.note, note) if text)
    if dataset.rows is not None:
        made = dataset.rows.part(kept, held).dataset(dataset.name)
        return replace(made, owners=owners, client_names=dataset.client_names, note=notes)
    test = dataset.test if held is None else dataset.train.take(held)
    return replace(dataset, train=dataset.train.take(kept), test=test, owners=owners, note=notes)
