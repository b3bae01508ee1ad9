"""Datasets, and loading one by name, from a folder, or from a function of your own."""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedsat.data import cache
from fedsat.data.arrays import (
    deviation,
    encode_labels,
    mean_and_variance,
    number_clients,
    samples_of,
    whole_labels,
)  # fmt: skip
from fedsat.data.builtin import FILE
from fedsat.data.catalog import DATASETS, Arrays, has_name, info
from fedsat.data.splits import hold_out
from fedsat.entry_points import load_offer, offers
from fedsat.errors import DataError, UsageError
from fedsat.options import import_object
from fedsat.seeding import Indices

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
        name: str = "torch",
        seed: int = 0,
    ) -> Dataset:
        """Return a dataset made from a torch `Dataset` of pairs (x, y), which is read once; see `from_arrays`."""
        return cls._build(name, train, test, clients, class_names, seed)

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
    ) -> Dataset:
        x, y = samples_of(train, name)
        labels, names = encode_labels(y, class_names, name)
        owners = None if clients is None else number_clients(clients, len(labels), name)
        samples = Split(x, labels)
        if test is None:
            return with_test_held_out(name, samples, names, seed, owners=owners)
        x, y = samples_of(test, f"{name}, test set")
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
    kept, held = hold_out(samples.labels, seed)
    if not len(held):
        raise DataError(f"{name}: no class has two samples, so none can be held out for testing")
    note = f"{name} has no test set: {len(held):,} of {len(samples):,} samples are held out (seed {seed})"
    owners = None if owners is None else owners[kept]
    train, test = samples.take(kept), samples.take(held)
    return Dataset(name, train, test, tuple(class_names), note, lacking=lacking, owners=owners)


def load(source: str | Dataset, *, image_size: int | None = None, seed: int = 0) -> Dataset:
    """Return a dataset by name (see `DATASETS`), from a folder, or from your own function as `module:name`.

    `image_size` resizes the image files of a folder to squares of that size. `seed` decides which samples are held
    out for testing if a folder has no test set. Neither affects other datasets.
    """
    if isinstance(source, str) and not has_name(source) and _is_path(source):
        from fedsat.data import folders  # noqa: PLC0415 (it builds on this module)

        return folders.load_folder(Path(source).expanduser(), image_size=image_size, seed=seed)
    dataset = source if isinstance(source, Dataset) else _by_name(source)
    if image_size not in (None, dataset.input_shape[-1]):
        size = dataset.input_shape[-1]
        raise UsageError(f"{dataset.name} has images of size {size}; image_size is for folders of image files")
    return dataset


def _by_name(name: str) -> Dataset:
    if name.startswith(OBJECT):
        _, called, checksum = name.split(":", 2)
        raise DataError(
            f"the dataset {called!r} (checksum {checksum}) was passed as an object; pass it again in Python: "
            "fedsat.resume(folder, dataset=…) or fedsat.run(dataset=…)"
        )
    if ":" in name:
        return _from_function(name, import_object("dataset", name))
    if name not in DATASETS and name in offers("datasets"):
        return _from_function(name, load_offer("dataset", offers("datasets")[name]))
    known = info(name)
    arrays = _builtin(name) if known.builtin else _fetched(name)
    train = Split(arrays.train_images, arrays.train_labels.astype(np.int64))
    test = Split(arrays.test_images, arrays.test_labels.astype(np.int64))
    return Dataset(name, train, test, known.class_names)


def _from_function(name: str, function: Any) -> Dataset:
    """Call the function that `name` stands for."""
    if not callable(function):
        raise UsageError(f"the dataset {name} is not a function; it must be one without arguments")
    made = function()
    if not isinstance(made, Dataset):
        raise UsageError(f"{name}() returned {type(made).__name__}; it must return a fedsat.Dataset")
    return replace(made, name=name)


def _is_path(name: str) -> bool:
    return "/" in name or "\\" in name or name.startswith((".", "~")) or Path(name).is_dir()


def _fetched(name: str) -> Arrays:
    if not cache.is_cached(name):
        raise DataError(f"{name} is not on this machine yet; run `fedsat data get {name}`")
    return cache.read(name)


def _builtin(name: str) -> Arrays:
    try:
        with FILE.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            arrays = Arrays(*(stored[field] for field in Arrays._fields))
        return info(name).verify(arrays, FILE.name)
    except (DataError, OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise DataError(f"the built-in {name} is damaged ({error}); install fedsat again") from error
