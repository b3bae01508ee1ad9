"""Datasets: samples to train and to test on, the classes, and who holds which sample."""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedsat.data.arrays import (
    class_names_of,
    deviation,
    encode_labels,
    mean_and_variance,
    number_clients,
    samples_of,
    whole_labels,
)  # fmt: skip
from fedsat.data.schema import Columns, Schema
from fedsat.data.splits import hold_out
from fedsat.errors import DataError, UsageError
from fedsat.seeding import Indices

if TYPE_CHECKING:
    from fedsat.data.tables import Rows

Moments = tuple[tuple[float, ...], tuple[float, ...]]
"""Mean and standard deviation of each channel."""

OBJECT = "object:"
"""The prefix by which records of runs name a dataset that was passed as an object."""


@dataclass(frozen=True, eq=False)
class Split:
    """Samples and their labels.

    `images` are uint8 [N, C, H, W], or float32 of any shape [N, ...]; `labels` are int64 from 0 upwards.
    """

    images: NDArray[Any]
    labels: Indices

    def __post_init__(self) -> None:
        object.__setattr__(self, "labels", whole_labels(self.labels, "labels"))
        if self.images.ndim < 2 or self.images.dtype not in (np.uint8, np.float32):
            raise DataError(f"images are {self.images.dtype} {list(self.images.shape)}; see docs/howto/data.md")
        if self.images.dtype == np.uint8 and self.images.ndim != 4:
            raise DataError(f"uint8 images need the shape [N, C, H, W], not {list(self.images.shape)}")
        if len(self.images) != len(self.labels):
            raise DataError(f"there are {len(self.images):,} images but {len(self.labels):,} labels")
        if not len(self.labels):
            raise DataError("the dataset has no samples")
        if not self.images[0].size:
            raise DataError(f"a sample has the shape {list(self.images.shape[1:])}, which holds no value")
        if self.images.dtype == np.float32 and not np.isfinite(self.images).all():
            bad = np.flatnonzero(~np.isfinite(self.images).reshape(len(self.images), -1).all(axis=1))[0]
            raise DataError(f"image {bad} holds a value that is not finite")

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, indices: Indices) -> Split:
        """Return some of the samples."""
        return Split(self.images[indices], self.labels[indices])


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """A training set, a test set, and the names of the classes; every class occurs in training."""

    name: str
    train: Split
    test: Split
    class_names: tuple[str, ...]
    note: str = ""
    """A note for the user, for example how the test set was made."""
    lacking: bool = False
    """Whether classes may be missing in training, as in one node's part of the data."""
    agreed: Moments | None = None
    """Mean and standard deviation to normalise by, if they come from the whole federation's training data."""
    owners: Indices | None = None
    """The client of each training sample, if the data are already divided."""
    client_names: tuple[str, ...] = ()
    """The clients' names, if they have any."""
    schema: Schema | None = None
    """The columns of a table and how rows become inputs; None for other data."""
    rows: Rows | None = None
    """The rows of a table, so that a part of its training rows can get its own schema."""

    @classmethod
    def from_table(
        cls, table: Any, *, test: Any = None, name: str | None = None, seed: int = 0, **columns: Any
    ) -> Dataset:
        """Return the dataset in a table: a pandas data frame, a .csv or .parquet file, or a folder of such files.

        Args:
            table: The data frame or the path.
            test: A data frame with the test set, if `table` is a data frame of training rows.
            name: What to call the dataset in tables and records; by default the name of the file.
            seed: Decides which rows are held out.
            columns: `label`, the column to predict; `client`, the column that names the client of each row;
                `test_column`, which says train or test; `drop`, columns to leave out; `hashed`, columns of text with
                many different values. Only `label` is needed.
        """
        from fedsat.data import tables  # noqa: PLC0415 (it builds on this module)

        if isinstance(table, str | Path):
            if test is not None:
                raise UsageError("test is for data frames; a column of a file says which rows are the test set")
            made = tables.load_table(Path(table).expanduser(), Columns(**columns), seed)
            return made if name is None else replace(made, name=name)
        return tables.of_frame(table, Columns(**columns), name or "table", seed, test)

    @classmethod
    def from_arrays(
        cls,
        x: ArrayLike,
        y: ArrayLike,
        *,
        test: Any = None,
        clients: ArrayLike | None = None,
        class_names: Sequence[str] | None = None,
        name: str = "arrays",
        seed: int = 0,
    ) -> Dataset:
        """Return a dataset of arrays or tensors.

        Args:
            x: Images [N, H, W], [N, H, W, C] or [N, C, H, W], or numbers of any shape [N, ...].
            y: Class labels [N]: numbers from 0 upwards, or names.
            test: The test set: a pair (x, y), or a torch `Dataset`. Without it, a sixth of each class is held out.
            clients: The client of each sample, as number or name, if the data are already divided; see the partition
                `natural`.
            class_names: Names of the classes; by default, the labels are their names.
            name: Name of the dataset in tables and records.
            seed: Decides which samples are held out.
        """
        return cls._build(name, (x, y), test, clients, class_names, seed)

    @classmethod
    def from_torch(
        cls,
        train: Any,
        *,
        test: Any = None,
        clients: ArrayLike | None = None,
        class_names: Sequence[str] | None = None,
        image_size: int | None = None,
        name: str = "torch",
        seed: int = 0,
    ) -> Dataset:
        """Return a dataset made from a torch `Dataset` of pairs (x, y), which is read once; see `from_arrays`.

        x is an array, a tensor or a Pillow image; images are resized to squares of `image_size`. The datasets of
        torchvision and MedMNIST come with the names of their classes.
        """
        return cls._build(name, train, test, clients, class_names or class_names_of(train), seed, image_size)

    @classmethod
    def from_clients(
        cls,
        parts: Sequence[Any],
        *,
        test: Any = None,
        class_names: Sequence[str] | None = None,
        name: str = "clients",
        seed: int = 0,
    ) -> Dataset:
        """Return a dataset that is already divided: one pair (x, y) or torch `Dataset` for each client."""
        if not parts:
            raise DataError(f"{name}: there are no clients")
        samples = [samples_of(part, f"{name}, client {client}") for client, part in enumerate(parts)]
        clients = np.repeat(np.arange(len(parts)), [len(y) for _, y in samples])
        try:
            pooled = tuple(np.concatenate(arrays) for arrays in zip(*samples, strict=True))
        except ValueError as error:
            raise DataError(f"{name}: the clients' samples do not have the same shape: {error}") from error
        return cls._build(name, pooled, test, clients, class_names, seed)

    @classmethod
    def _build(
        cls,
        name: str,
        train: Any,
        test: Any,
        clients: ArrayLike | None,
        class_names: Sequence[str] | None,
        seed: int,
        image_size: int | None = None,
    ) -> Dataset:
        x, y = samples_of(train, name, image_size)
        labels, names = encode_labels(y, class_names, name)
        owners = None if clients is None else number_clients(clients, len(labels), name)
        samples = Split(x, labels)
        if test is None:
            return with_test_held_out(name, samples, names, seed, owners=owners)
        x, y = samples_of(test, f"{name}, test set", image_size)
        return cls(name, samples, Split(x, encode_labels(y, names, f"{name}, test set")[0]), names, owners=owners)

    def __post_init__(self) -> None:
        if self.train.images.shape[1:] != self.test.images.shape[1:]:
            shapes = [list(split.images.shape[1:]) for split in (self.train, self.test)]
            raise DataError(f"{self.name}: training images have shape {shapes[0]}, test images {shapes[1]}")
        if self.train.images.dtype != self.test.images.dtype:
            types = [split.images.dtype for split in (self.train, self.test)]
            raise DataError(f"{self.name}: training images are {types[0]}, test images {types[1]}")
        for title, split in (("training", self.train), ("test", self.test)):
            if split.labels.max() >= self.classes:
                raise DataError(
                    f"{self.name}: a {title} label is {split.labels.max()}; with {self.classes} classes"
                    f" labels run from 0 to {self.classes - 1}"
                )
        for name in (*self.class_names, *self.client_names):
            if any(unicodedata.category(sign) == "Cc" for sign in name):
                raise DataError(f"{self.name}: the name {name!r} contains a control character")
        self._check_owners()
        if self.lacking:
            return
        empty = np.flatnonzero(np.bincount(self.train.labels, minlength=self.classes) == 0)
        if len(empty):
            name = self.class_names[empty[0]]
            raise DataError(
                f"{self.name}: class {name} (label {empty[0]}) has no training sample; number the classes without gaps"
            )

    def _check_owners(self) -> None:
        if self.owners is None:
            return
        if self.owners.shape != self.train.labels.shape:
            raise DataError(f"{self.name}: {len(self.owners):,} samples have a client, of {len(self.train):,}")
        empty = np.flatnonzero(np.bincount(self.owners) == 0)
        if len(empty):
            raise DataError(f"{self.name}: client {empty[0]} has no training sample; leave it out, or give a test set")

    def __repr__(self) -> str:
        clients = "" if self.clients is None else f", {self.clients:,} clients"
        sizes = f"{len(self.train):,} training and {len(self.test):,} test samples"
        return f"<Dataset {self.name}: {sizes} {list(self.input_shape)}, {self.classes} classes{clients}>"

    @property
    def classes(self) -> int:
        """m, the number of classes."""
        return len(self.class_names)

    @property
    def clients(self) -> int | None:
        """The number of clients, if the data are already divided."""
        return None if self.owners is None else int(self.owners.max()) + 1

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one sample."""
        return self.train.images.shape[1:]

    @property
    def mean(self) -> tuple[float, ...]:
        """The training set's mean of each channel (feature), with uint8 scaled to [0, 1]."""
        return self._moments[0]

    @property
    def std(self) -> tuple[float, ...]:
        """The training set's standard deviation of each channel (feature); 1 where it is constant."""
        return self._moments[1]

    @cached_property
    def _moments(self) -> Moments:
        if self.agreed is not None:
            return self.agreed
        mean, variance = mean_and_variance(self.train.images)
        return tuple(mean.tolist()), tuple(deviation(mean, variance).tolist())

    @cached_property
    def reference(self) -> str:
        """The dataset's name and checksum, which records of runs store in place of the object."""
        digest = hashlib.sha256(repr([self.class_names, self.train.images.shape, self.train.images.dtype]).encode())
        owners = np.empty(0, np.int64) if self.owners is None else self.owners
        for part in (self.train.images, self.train.labels, self.test.images, self.test.labels, owners):
            digest.update(np.ascontiguousarray(part).data)
        return f"{OBJECT}{self.name}:{digest.hexdigest()[:16]}"


def with_test_held_out(
    name: str,
    samples: Split,
    class_names: Sequence[str],
    seed: int,
    *,
    lacking: bool = False,
    owners: Indices | None = None,
) -> Dataset:
    """Return a dataset whose test set is a sixth of each class."""
    kept, held = hold_out(samples.labels, seed, owners=owners)
    if not len(held):
        raise DataError(f"{name}: no class has two samples, so none can be held out for testing")
    note = held_out_note(name, len(held), len(samples), seed)
    owners = None if owners is None else owners[kept]
    train, test = samples.take(kept), samples.take(held)
    return Dataset(name, train, test, tuple(class_names), note, lacking=lacking, owners=owners)


def held_out_note(name: str, held: int, samples: int, seed: int) -> str:
    """Return what to tell the user about a test set that was held out."""
    return f"{name} has no test set: {held:,} of {samples:,} samples are held out (seed {seed})"
