"""The data of one node, which never leave the node.

The node's configuration (`flower-supernode --node-config`) is one of

    folder="/data/ours"                                   everything in this folder (see docs/howto/data.md), or a table
    dataset="mnist" partition-id=3 num-partitions=10      one part of a dataset, split as in the run

`dataset` is optional if the run's dataset is one that the agreement lists, by default one of those in the package.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedsat import data
from fedsat.data.federation import reportable
from fedsat.data.folders import load_folder
from fedsat.data.schema import Schema
from fedsat.data.splits import hold_out
from fedsat.data.tables import load_part
from fedsat.errors import DataError, UsageError
from fedsat.experiment.config import Config
from fedsat.flower.agreement import Agreement
from fedsat.flower.run_spec import RunSpec

NodeConfig = Mapping[str, Any]


def number_of(node: NodeConfig) -> int:
    """Return the client's number according to the node's configuration, or −1."""
    number = node.get("partition-id", -1)
    if isinstance(number, bool) or not isinstance(number, int):
        raise UsageError(f"the node's partition-id is {number!r}; it must be an integer")
    return number


def load_share(run: RunSpec, config: Config, node: NodeConfig) -> data.Dataset:
    """Load the node's samples, normalised as in the run. Rare classes are not among those that it holds out."""
    share = _load(run, config, node)
    if run.held_out:
        shown = reportable(share.test.labels, _report_at_least(config, node))
        if not shown.any():
            raise DataError("every class among the samples that the node holds out is too rare to be reported")
        share = replace(share, test=data.Split(share.test.images[shown], share.test.labels[shown]))
    return share


def _load(run: RunSpec, config: Config, node: NodeConfig) -> data.Dataset:
    schema = Schema.from_json(run.schema) if run.schema else None
    if "folder" in node:
        if config.imbalance > 1 or config.holdout:
            raise UsageError("the node has its own folder; imbalance and holdout need a dataset that the run divides")
        folder = Path(str(node["folder"])).expanduser()
        if schema is not None:
            return load_part(folder, config.columns, config.seed, schema)
        share = load_folder(folder, image_size=config.image_size, seed=config.seed, class_names=run.class_names)
    else:
        share = _partition(run, config, node, schema)
    if run.mean:
        share = replace(share, agreed=(run.mean, run.std))
    return share


def federation_of(share: data.Dataset, client: int, config: Config, node: NodeConfig) -> data.Federation:
    """Return a federation in which only `client` has samples, so that the engine uses the client's number."""
    samples = len(share.train)
    offsets = np.where(np.arange(config.clients + 1) <= client, 0, samples)
    federation = data.Federation(share, np.arange(samples, dtype=np.int64), offsets.astype(np.int64))
    return replace(
        federation.with_validation(config.validation, config.seed),
        seed=config.seed,
        worker_samples=config.worker_samples,
        report_at_least=_report_at_least(config, node),
    )


def _report_at_least(config: Config, node: NodeConfig) -> int:
    """Return what the run or this node's owner asks for, whichever is more; with noise on reports, all is reported."""
    if config.privacy.noisy_reports:
        return 1
    return max(config.report_at_least, Agreement.of_node(node).report_at_least)


def _partition(run: RunSpec, config: Config, node: NodeConfig, schema: Schema | None) -> data.Dataset:
    number = number_of(node)
    if not 0 <= number < config.clients:
        raise UsageError(
            f"the node has no folder, and its partition-id {number} is not between 0 and {config.clients - 1}"
        )
    if node.get("num-partitions", config.clients) != config.clients:
        raise UsageError(
            f"num-partitions of the node is {node['num-partitions']}, but the run has {config.clients} clients"
        )
    if "dataset" not in node and config.dataset_name not in Agreement.of_node(node).datasets:
        raise UsageError(
            f"the run may not choose the dataset {config.dataset_name!r}; set dataset or folder in the node's "
            "configuration, or list it under datasets in the agreement"
        )
    name = str(node.get("dataset", config.dataset_name))
    whole = replace(config, dataset=name).load_dataset()
    if schema is not None and whole.schema != schema:
        why = "it is not a table" if whole.schema is None else schema.difference(whole.schema)
        raise DataError(f"{whole.name} differs from what the federation agreed on: {why}")
    if whole.class_names != run.class_names:
        raise DataError(
            f"the {whole.classes} classes of {whole.name} differ from the {len(run.class_names)} classes of the run"
        )
    held = data.Federation.build(whole, config.partition, config.clients, config.seed).indices(number)
    train, test = data.Split(whole.train.images[held], whole.train.labels[held]), whole.test
    if run.held_out:
        kept, tested = hold_out(train.labels, config.seed)
        if not len(tested):
            raise DataError(
                f"partition {number} of {whole.name}: no class has two samples, so no test samples can be held out"
            )
        parts = (data.Split(train.images[part], train.labels[part]) for part in (kept, tested))
        train, test = parts
    moments = (whole.mean, whole.std)
    return data.Dataset(whole.name, train, test, whole.class_names, whole.note, lacking=True, agreed=moments)
