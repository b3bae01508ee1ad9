"""Defaults that depend on the dataset: the model for a table, and the clients of data that are already divided."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fedsat.data import Columns, Dataset, hub, partitions
from fedsat.data.loading import builtin_columns, table_path
from fedsat.data.tables import count_clients
from fedsat.experiment.config import Config
from fedsat.experiment.settings import override


def brought_by_dataset(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the dataset's own defaults, except for settings that are in `given`."""
    dataset = given.get("dataset", Config.dataset)
    brought: dict[str, Any] = {}
    if isinstance(dataset, Dataset):
        clients, tabular = dataset.clients, dataset.schema is not None
    elif isinstance(dataset, str) and (path := table_path(dataset)) is not None:
        columns, usual = Columns.of(given), builtin_columns(dataset)
        if usual is not None and columns.label is None:
            columns = usual
            brought |= {name: value for name, value in vars(usual).items() if value}
        clients, tabular = count_clients(path, columns) if columns.label and columns.client else None, True
    elif isinstance(dataset, str) and dataset.startswith(hub.PREFIX):
        clients, tabular = hub.outline(dataset, Columns.of(given))
    else:
        return {}
    if tabular:
        brought["model"] = "tabular"
    if clients is not None and partitions.complete(given.get("partition", "natural"))["name"] == "natural":
        brought |= {"partition": "natural", "clients": clients}
        if clients < Config.per_round:
            brought["per_round"] = clients
    return {name: value for name, value in brought.items() if name not in given}


@dataclass(frozen=True)
class Given:
    """The settings that a user gave. The dataset's own defaults and the general ones complete the table of a run."""

    settings: Sequence[tuple[str, Any]] = ()
    base: Mapping[str, Any] | None = None
    """The table of a configuration file, which the settings override."""
    on: Sequence[str] = ()
    """Parts that are added to the method."""
    off: Sequence[str] = ()
    """Parts that are left out of the method."""

    def also(self, settings: Iterable[tuple[str, Any]]) -> Given:
        """Return these settings and further ones, which override them."""
        return replace(self, settings=[*self.settings, *settings])

    @property
    def table(self) -> dict[str, Any]:
        """The complete table of settings."""
        base = self.base or {}
        brought = brought_by_dataset({**base, **dict(self.settings)})
        return override(base, [*brought.items(), *self.settings], self.on, self.off)
