"""A federation: a dataset whose training samples are divided among clients."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fedsat.data.datasets import Dataset
from fedsat.data.partition import Natural, Partition, make_partition, partitions
from fedsat.data.splits import hold_out_for_validation, sample_by_class
from fedsat.data.summary import Summary
from fedsat.errors import UsageError
from fedsat.options import Spec
from fedsat.seeding import Indices, generator


@dataclass(frozen=True, eq=False)
class Federation:
    """The training samples of `dataset`, divided among clients.

    Client k trains on the samples `order[offsets[k]:offsets[k + 1]]`, in ascending order.
    """

    dataset: Dataset
    order: Indices
    offsets: Indices
    validation: tuple[Indices, ...] = ()
    """Each client's samples for its evaluations as a worker; it does not train on them. Empty without validation."""
    seed: int = 0
    """Seed of the draw of `worker_samples`."""
    worker_samples: int = 0
    """Largest number of samples on which a client evaluates models as a worker; 0: all."""
    report_at_least: int = 1
    """Clients report nothing about a class of which they have fewer samples than this."""

    @classmethod
    def build(cls, dataset: Dataset, partition: Spec | Partition, clients: int, seed: int) -> Federation:
        """Divide a dataset among `clients`; the same arguments give the same division."""
        part = partitions.build(partition) if isinstance(partition, str | Mapping) else partition
        if isinstance(part, Natural):
            owners = _natural_owners(dataset, clients)
        else:
            owners = make_partition(part, dataset.train.labels, dataset.classes, clients, seed)
        offsets = np.concatenate([[0], np.cumsum(np.bincount(owners, minlength=clients))])
        return cls(dataset, np.argsort(owners, kind="stable").astype(np.int64), offsets.astype(np.int64))

    def with_validation(self, share: float, seed: int) -> Federation:
        """Return the federation with this share of every client's samples set aside for validation."""
        if not share:
            return self
        held = [self.indices(client) for client in range(self.clients)]
        labels = self.dataset.train.labels
        splits = [hold_out_for_validation(labels[own], share, seed, client) for client, own in enumerate(held)]
        kept = [own[train] for own, (train, _) in zip(held, splits, strict=True)]
        return replace(
            self,
            order=np.concatenate(kept),
            offsets=np.cumsum([0, *map(len, kept)]),
            validation=tuple(own[taken] for own, (_, taken) in zip(held, splits, strict=True)),
        )

    @property
    def clients(self) -> int:
        """N, the number of clients."""
        return len(self.offsets) - 1

    @cached_property
    def sizes(self) -> Indices:
        """n_k, the number of samples that each client trains on."""
        return np.diff(self.offsets)

    @cached_property
    def class_counts(self) -> Indices:
        """Samples that each client trains on, in each class [N, m]."""
        return self._count(self.order, self.sizes)

    @cached_property
    def class_mixes(self) -> Indices:
        """All samples of each client in each class [N, m], those for validation included."""
        if not self.validation:
            return self.class_counts
        sizes = np.array([len(own) for own in self.validation])
        return self.class_counts + self._count(np.concatenate(self.validation), sizes)

    @property
    def reported_mixes(self) -> Indices:
        """`class_mixes` as clients report them: without the classes of which they have few samples."""
        return np.where(self.class_mixes < self.report_at_least, 0, self.class_mixes)

    def _count(self, samples: Indices, sizes: Indices) -> Indices:
        """Count samples by client and class; the first `sizes[0]` samples are those of client 0, and so on."""
        owner = np.repeat(np.arange(self.clients), sizes)
        cell = owner * self.dataset.classes + self.dataset.train.labels[samples]
        cells = self.clients * self.dataset.classes
        return np.bincount(cell, minlength=cells).reshape(self.clients, self.dataset.classes).astype(np.int64)

    @cached_property
    def fingerprint(self) -> str:
        """A checksum of all samples and of their assignment to clients."""
        train, test = self.dataset.train, self.dataset.test
        parts = (self.order, self.offsets, train.labels, test.labels, train.images, test.images, *self.validation)
        digest = hashlib.sha256(repr([self.dataset.class_names, train.images.shape]).encode())
        for part in parts:
            digest.update(np.ascontiguousarray(part).data)
        return digest.hexdigest()

    def indices(self, client: int) -> Indices:
        """Return the training samples of a client (a view; do not write to it)."""
        if not 0 <= client < self.clients:
            raise IndexError(f"client {client} is outside 0 to {self.clients - 1}")
        return self.order[self.offsets[client] : self.offsets[client + 1]]

    def worker_indices(self, client: int) -> Indices:
        """Return the samples on which a client evaluates models as a worker: those for validation, if there are any."""
        return self.validation[client] if self.validation else self.indices(client)

    def reported_indices(self, client: int) -> Indices:
        """Return the samples of a worker about which it reports: `worker_indices` without its rare classes."""
        return self._reportable(self.worker_indices(client))

    def judging_indices(self, client: int) -> Indices:
        """Return the samples on which a worker evaluates other clients' models, the same in every round.

        They are `worker_samples` of its `worker_indices` in their mix of classes, without the classes that are rare
        among them.
        """
        held = self.worker_indices(client)
        if 0 < self.worker_samples < len(held):
            labels, rng = self.dataset.train.labels[held], generator(self.seed, "worker samples", client)
            held = held[sample_by_class(labels, self.worker_samples, rng)]
        return self._reportable(held)

    def shown_indices(self, client: int) -> Indices:
        """Return the training samples of a client about which it reports: those of classes that are not rare."""
        return self._reportable(self.indices(client))

    def _reportable(self, held: Indices) -> Indices:
        return held[reportable(self.dataset.train.labels[held], self.report_at_least)]

    @property
    def validated(self) -> bool:
        """Whether any client reports about validation samples."""
        return bool(self.validation) and any(len(self.reported_indices(client)) for client in range(self.clients))

    def summary(self) -> Summary:
        """Return sizes, classes per client, and imbalance."""
        return Summary.of(self.class_counts)


def reportable(labels: Indices, at_least: int) -> NDArray[np.bool_]:
    """Return which of these samples belong to a class with at least this many of them."""
    return np.asarray(np.bincount(labels, minlength=1)[labels] >= at_least)


def _natural_owners(dataset: Dataset, clients: int) -> Indices:
    if dataset.owners is None:
        raise UsageError(
            f"the partition natural needs the client of each sample, which {dataset.name} does not have; "
            "use Dataset.from_clients, clients=… of Dataset.from_arrays, or a folder with clients.npy"
        )
    if dataset.clients != clients:
        raise UsageError(f"{dataset.name} has {dataset.clients} clients; set clients to {dataset.clients}")
    return dataset.owners
