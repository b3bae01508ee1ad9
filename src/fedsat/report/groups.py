"""Runs that differ only in their seed belong together: groups, and names that tell them apart."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedsat.errors import UsageError
from fedsat.experiment.folder import CONFIG
from fedsat.experiment.store import ONLY_HOW, StoredRun, completed, identity

MOST_NAMED = 4
"""How many settings a label may name besides the method's own: more are no name any more."""


@dataclass(frozen=True)
class Group:
    """One method under one setting, over seeds."""

    label: str
    runs: list[StoredRun]
    """One for each seed, in their order."""

    @property
    def first(self) -> StoredRun:
        """The run of the lowest seed, which stands for the group where one run has to."""
        return self.runs[0]

    @property
    def seeds(self) -> list[int]:
        """The seeds at hand."""
        return [run.seed for run in self.runs]


def find_runs(paths: Iterable[Path]) -> list[StoredRun]:
    """The runs in the given folders; a folder of runs, such as a comparison's, stands for all that it holds.

    What else `runs/*` names, such as a page among the runs, is passed over.
    """
    given, runs = list(paths), list[StoredRun]()
    for path in given:
        if not path.exists():
            raise UsageError(f"there is no folder {path}")
        folders = [path] if (path / CONFIG).is_file() else sorted(file.parent for file in path.glob(f"*/{CONFIG}"))
        runs += [StoredRun.read(folder) for folder in folders]
    if not runs:
        places = ", ".join(map(str, given))
        raise UsageError(f"no run in {places}: neither there nor in a folder there is a {CONFIG}")
    return runs


def group_runs(runs: Iterable[StoredRun]) -> list[Group]:
    """Groups in the order in which their first runs come. Runs without any test result are left out.

    Of several runs of the same configuration and seed the one with the most rounds counts, so that an interrupted
    attempt does not stand beside the finished run.
    """
    found: dict[str, dict[int, StoredRun]] = {}
    for run in runs:
        if not run.evaluated:
            continue
        seeds = found.setdefault(identity(run.table, without=("seed",)), {})
        if run.seed not in seeds or len(seeds[run.seed].records) < len(run.records):
            seeds[run.seed] = run
    members = [[seeds[seed] for seed in sorted(seeds)] for seeds in found.values()]
    labels = _labels([group[0] for group in members])
    return [Group(label, group) for label, group in zip(labels, members, strict=True)]


def common_settings(groups: Sequence[Group]) -> str:
    """What all groups share, in a few words: data, split, model, clients, rounds, seeds."""
    table = groups[0].first.table
    words = {
        "dataset": Path(str(table["dataset"])).name,
        "partition": " ".join(_named(key, value) for key, value in table["partition"].items()),
        "model": table["model"]["name"],
        "clients": f"{table['per_round']} of {table['clients']} clients",
        "rounds": f"{table['rounds']} rounds",
    }
    differing = {key.partition(".")[0] for key in _differing([group.first for group in groups])}
    shared = ", ".join(str(text) for key, text in words.items() if key not in differing) or "runs of different settings"
    seeds = sorted({seed for group in groups for seed in group.seeds})
    return f"{shared}; {'seeds' if len(seeds) > 1 else 'seed'} {', '.join(map(str, seeds))}"


def _labels(runs: list[StoredRun]) -> list[str]:
    """Each run's method, and the settings in which it differs from the others, or its folder if these are many."""
    shared = [key for key in _differing(runs) if not key.startswith("algorithm.")]
    if len(shared) > MOST_NAMED:
        return [f"{run.method} ({run.folder.name})" for run in runs]
    labels = []
    for run in runs:
        like = [other for other in runs if other.method == run.method]
        keys = [*shared, *(key for key in _differing(like) if key.startswith("algorithm."))]
        flat = flatten(completed(run.table))
        named = [_named(key.rpartition(".")[2], flat[key]) for key in keys if key in flat]
        labels.append(" ".join([run.method, *named]))
    return labels


def _differing(runs: list[StoredRun]) -> list[str]:
    """The settings that do not have the same value in all runs."""
    tables = [flatten(completed(run.table)) for run in runs]
    keys = dict.fromkeys(key for table in tables for key in table)
    ignored = {"seed", *ONLY_HOW}
    return [key for key in keys if key not in ignored and len({str(table.get(key)) for table in tables}) > 1]


def flatten(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings by their full names: `algorithm.gamma`."""
    flat: dict[str, Any] = {}
    for key, value in table.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {prefix + key: value}
    return flat


def _named(key: str, value: Any) -> str:
    """A setting in words; a part goes by its own name."""
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return text if key == "name" else f"{key}={text}"
