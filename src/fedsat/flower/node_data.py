"""The data of one node, as its own configuration names them. They never leave it.

A node's configuration (`flower-supernode --node-config`) says one of

    folder="/data/ours"                                   all that this folder holds (see docs/howto/data.md)
    dataset="mnist" partition-id=3 num-partitions=10      one part of a dataset, split as the run says

`dataset` may be left out where the run's is one that fedsat knows by name.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedsat import data
from fedsat.data.catalog import DATASETS
from fedsat.data.folders import hold_out, load_folder
from fedsat.errors import DataError, UsageError
from fedsat.experiment.config import Config
from fedsat.flower.messages import RunSpec

NodeConfig = Mapping[str, Any]


def number_of(node: NodeConfig) -> int:
    """The client that a node is, by its own word, or −1."""
    number = node.get("partition-id", -1)
    if isinstance(number, bool) or not isinstance(number, int):
        raise UsageError(f"the node's partition-id is {number!r}; it must be a whole number")
    return number


def load_share(run: RunSpec, config: Config, node: NodeConfig) -> data.Dataset:
    """The node's samples, normalised as the run says."""
    if "folder" in node:
        folder = Path(str(node["folder"])).expanduser()
        share = load_folder(folder, image_size=config.image_size, seed=config.seed, class_names=run.class_names)
    else:
        share = _partition(run, config, node)
    if run.mean:
        share = dataclasses.replace(share, agreed=(run.mean, run.std))
    return share


def federation_of(share: data.Dataset, client: int, clients: int) -> data.Federation:
    """A federation in which only `client` has samples: engines then call the node by its right number."""
    samples = len(share.train)
    offsets = np.where(np.arange(clients + 1) <= client, 0, samples)
    return data.Federation(share, np.arange(samples, dtype=np.int64), offsets.astype(np.int64))


def _partition(run: RunSpec, config: Config, node: NodeConfig) -> data.Dataset:
    number = number_of(node)
    if not 0 <= number < config.clients:
        raise UsageError(
            f"the node has no folder, and its partition-id {number} is not one of {config.clients} clients"
        )
    if node.get("num-partitions", config.clients) != config.clients:
        raise UsageError(f"the node expects {node['num-partitions']} partitions; the run has {config.clients}")
    name = str(node.get("dataset", config.dataset))
    if name not in DATASETS and "dataset" not in node:
        raise UsageError(f"the run's dataset {name!r} has no name here; the node's configuration must name its own")
    whole = data.load(name, image_size=config.image_size, seed=config.seed)
    if whole.class_names != run.class_names:
        raise DataError(f"{whole.name} has {whole.classes} classes, which are not the run's {len(run.class_names)}")
    held = data.Federation.build(whole, config.partition, config.clients, config.seed).indices(number)
    train, test = data.Split(whole.train.images[held], whole.train.labels[held]), whole.test
    if run.held_out:
        kept, tested = hold_out(train.labels, config.seed)
        if not len(tested):
            raise DataError(f"partition {number} of {whole.name}: no class has two samples, so none can be held out")
        parts = (data.Split(train.images[part], train.labels[part]) for part in (kept, tested))
        train, test = parts
    moments = (whole.mean, whole.std)
    return data.Dataset(whole.name, train, test, whole.class_names, whole.note, lacking=True, agreed=moments)
