"""Partitions of samples among clients, and the checks that every partition must pass.

A partition returns the owner of every sample, so no sample can be lost or assigned twice. The partitions here do not
depend on labels; those that skew labels are in `label_skew`.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from fedsat import options
from fedsat.data.npy import read_npy
from fedsat.errors import DataError, UsageError
from fedsat.options import Option, Spec
from fedsat.registry import Registry
from fedsat.seeding import Indices, generator

Beta = Annotated[float, Option("β of the Dirichlet distribution; smaller is more uneven", above=0)]


class Partition:
    """Base class of partitions. Your own partition implements `owners`."""

    def __post_init__(self) -> None:
        options.check(self, "partition")

    def owners(self, labels: Indices, classes: int, clients: int, rng: np.random.Generator) -> Indices:
        """Return the client of each sample, from 0 to `clients` − 1."""
        raise NotImplementedError


partitions: Registry[Partition] = Registry("partition", Partition, "partitions")


def make_partition(
    partition: Spec | Partition, labels: NDArray[np.integer[Any]], classes: int, clients: int, seed: int
) -> Indices:
    """Return the owner of every sample, a pure function of the arguments; no client is left empty."""
    part = partitions.build(partition) if isinstance(partition, str | Mapping) else partition
    if clients < 1:
        raise UsageError(f"clients is {clients}; it must be at least 1")
    if clients > len(labels):
        raise UsageError(f"{clients:,} clients cannot share {len(labels):,} samples; each needs at least one")
    if labels.min() < 0 or labels.max() >= classes:
        raise DataError(f"labels run from {labels.min()} to {labels.max()}; {classes} classes have 0 to {classes - 1}")
    empty = np.flatnonzero(np.bincount(labels, minlength=classes) == 0)
    if len(empty):
        raise DataError(f"class {empty[0]} has no sample, so no client can hold it")
    owners = part.owners(labels.astype(np.int64), classes, clients, generator(seed, "partition"))
    _check(owners, len(labels), clients, type(part).__name__)
    return owners


def _check(owners: Indices, samples: int, clients: int, name: str) -> None:
    """Check the result of a partition, which may be defined by the user."""
    if owners.shape != (samples,) or owners.dtype != np.int64:
        raise DataError(f"partition {name} returned {owners.dtype} {list(owners.shape)} instead of int64 [{samples}]")
    if owners.min() < 0 or owners.max() >= clients:
        raise DataError(f"partition {name} returned a client outside 0 to {clients - 1}")
    empty = np.flatnonzero(np.bincount(owners, minlength=clients) == 0)
    if len(empty):
        raise DataError(f"partition {name} left client {empty[0]} empty")


def dirichlet(rng: np.random.Generator, beta: float, size: int) -> NDArray[np.float64]:
    """Draw from the symmetric Dirichlet(β) distribution with `size` entries."""
    return rng.dirichlet(_within_bounds(np.full(size, beta)))


def dirichlet_mixes(rng: np.random.Generator, parameters: NDArray[np.float64], rows: int) -> NDArray[np.float64]:
    """Draw `rows` times from the Dirichlet distribution with these parameters, [rows, parameters]."""
    return rng.dirichlet(_within_bounds(parameters), size=rows)


def _within_bounds(parameters: NDArray[np.float64]) -> NDArray[np.float64]:
    # Beyond these bounds a draw is one-hot or uniform anyway, and numpy's arithmetic under- or overflows.
    return np.clip(parameters, 1e-6, 1e9)


def apportion(total: int, shares: NDArray[np.float64]) -> Indices:
    """Return integers that sum to `total`, by rounding the cumulated `shares` (which sum to 1)."""
    cuts = np.rint(np.cumsum(shares) * total).astype(np.int64)
    cuts[-1] = total
    return np.diff(np.minimum(cuts, total), prepend=0)


def even_sizes(total: int, clients: int, rng: np.random.Generator) -> Indices:
    """Return random client sizes that sum to `total` and differ by at most one."""
    return total // clients + (rng.permutation(clients) < total % clients).astype(np.int64)


def distribute(labels: Indices, counts: Indices, rng: np.random.Generator) -> Indices:
    """Return the owners if each client gets this many random samples of each class, [clients, classes]."""
    owners = np.empty(len(labels), np.int64)
    for label in range(counts.shape[1]):
        samples = rng.permutation(np.flatnonzero(labels == label))
        owners[samples] = np.repeat(np.arange(len(counts)), counts[:, label])
    return owners


@partitions.register("iid")
@dataclass(frozen=True)
class Iid(Partition):
    """Random, with sizes that differ by at most one."""

    def owners(self, labels: Indices, classes: int, clients: int, rng: np.random.Generator) -> Indices:  # noqa: ARG002
        """Assign shuffled samples in turn."""
        return rng.permutation(np.arange(len(labels), dtype=np.int64) % clients)


@partitions.register("quantity")
@dataclass(frozen=True)
class Quantity(Partition):
    """Sizes ~ Dirichlet(β), random labels."""

    beta: Beta = 0.5

    def owners(self, labels: Indices, classes: int, clients: int, rng: np.random.Generator) -> Indices:  # noqa: ARG002
        """Assign one sample to each client, and the others in proportion to the draw."""
        sizes = 1 + apportion(len(labels) - clients, dirichlet(rng, self.beta, clients))
        return rng.permutation(np.repeat(np.arange(clients, dtype=np.int64), sizes))


@partitions.register("natural")
@dataclass(frozen=True)
class Natural(Partition):
    """The clients that the data come from, if the dataset defines them."""

    def owners(self, labels: Indices, classes: int, clients: int, rng: np.random.Generator) -> Indices:  # noqa: ARG002
        """Raise an error: labels do not determine the clients; `Federation.build` takes them from the dataset."""
        raise UsageError("the partition natural needs a dataset that is already divided among clients")


@partitions.register("file")
@dataclass(frozen=True)
class FromFile(Partition):
    """A split from a file: .csv with the header client,index; .npy with such pairs; .json with a list per client."""

    path: Annotated[Path, Option("the file: .csv, .npy or .json")]

    def owners(self, labels: Indices, classes: int, clients: int, rng: np.random.Generator) -> Indices:  # noqa: ARG002
        """Check that the file lists every sample once and leaves no client empty."""
        pairs = _read_pairs(self.path)
        client, index = pairs[:, 0], pairs[:, 1]
        if client.min() < 0:
            raise DataError(f"{self.path}: client {client.min()} is negative; clients are numbered from 0")
        if client.max() + 1 != clients:
            raise UsageError(
                f"{self.path} is for {client.max() + 1:,} clients; set clients to that number, not to {clients:,}"
            )
        outside = index[(index < 0) | (index >= len(labels))]
        if len(outside):
            raise DataError(f"{self.path}: index {outside[0]} is outside 0 to {len(labels) - 1}")
        times = np.bincount(index, minlength=len(labels))
        for wrong, words in ((times > 1, "listed more than once"), (times == 0, "not listed")):
            if wrong.any():
                raise DataError(f"{self.path}: sample {np.flatnonzero(wrong)[0]} is {words} ({wrong.sum():,} in total)")
        empty = np.flatnonzero(np.bincount(client, minlength=clients) == 0)
        if len(empty):
            raise DataError(f"{self.path}: client {empty[0]} has no sample; number the clients without gaps")
        owners = np.empty(len(labels), np.int64)
        owners[index] = client
        return owners


def _read_pairs(path: Path) -> Indices:
    """Return the (client, index) pairs of a partition file."""
    readers = {".csv": _read_csv, ".npy": _read_npy, ".json": _read_json}
    if path.suffix not in readers:
        raise UsageError(f"{path}: the name of a partition file must end in {', '.join(readers)}")
    try:
        pairs = readers[path.suffix](path)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from error
    except (ValueError, csv.Error) as error:
        raise DataError(f"{path}: {error}") from error
    if not len(pairs):
        raise DataError(f"{path}: contains no pairs of client and index")
    return pairs


def _read_csv(path: Path) -> Indices:
    with path.open(newline="", encoding="utf-8") as file:
        rows = csv.reader(file)
        header = [name.strip().lower() for name in next(rows, [])]
        if header != ["client", "index"]:
            raise ValueError(f"expected the header client,index, found {','.join(header) or 'nothing'}")
        pairs = []
        for row in rows:
            try:
                client, index = row
                pairs.append((int(client), int(index)))
            except ValueError:
                raise ValueError(f"line {rows.line_num} is not a pair of whole numbers: {','.join(row)}") from None
    return _as_pairs(pairs)


def _read_npy(path: Path) -> Indices:
    pairs = read_npy(path)
    if pairs.dtype.kind not in "iu" or pairs.ndim != 2 or pairs.shape[1] != 2:
        raise ValueError("expected whole numbers of shape [samples, 2]: client, index")
    return pairs.astype(np.int64)


def _read_json(path: Path) -> Indices:
    lists = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(lists, list) or not all(isinstance(indices, list) for indices in lists):
        raise ValueError("expected a list with one list of indices for each client")
    if not all(type(index) is int for indices in lists for index in indices):
        raise ValueError("expected whole numbers as indices")
    if [] in lists:
        raise ValueError(f"client {lists.index([])} has no sample")
    return _as_pairs((client, index) for client, indices in enumerate(lists) for index in indices)


def _as_pairs(pairs: Iterable[tuple[int, int]]) -> Indices:
    try:
        return np.array(list(pairs), np.int64).reshape(-1, 2)
    except OverflowError:
        raise ValueError("a number is too large to be a client or an index") from None
