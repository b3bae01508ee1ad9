"""Groups of runs that differ only in their seed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedsat.errors import UsageError
from fedsat.experiment.folder import CONFIG
from fedsat.experiment.store import StoredRun, identity
from fedsat.report.labels import make_labels, shared_settings


@dataclass(frozen=True)
class Group:
    """One method under one setting, over seeds."""

    label: str
    runs: list[StoredRun]
    """One for each seed, in the order of the seeds."""

    @property
    def first(self) -> StoredRun:
        """The run with the lowest seed, which represents the group where only one run can be shown."""
        return self.runs[0]

    @property
    def seeds(self) -> list[int]:
        """The seeds of the runs."""
        return [run.seed for run in self.runs]


def find_runs(paths: Iterable[Path]) -> list[StoredRun]:
    """Return the runs in the given folders. A folder can be a run or contain runs, like that of a comparison.

    Other files, such as a report page that `runs/*` includes, are skipped.
    """
    given, runs = list(paths), list[StoredRun]()
    for path in given:
        if not path.exists():
            raise UsageError(f"there is no folder {path}")
        folders = [path] if (path / CONFIG).is_file() else sorted(file.parent for file in path.glob(f"*/{CONFIG}"))
        runs += [StoredRun.read(folder) for folder in folders]
    if not runs:
        places = ", ".join(map(str, given))
        raise UsageError(f"no run in {places}; give the folder of a run, which contains {CONFIG}, or a folder of runs")
    return runs


def group_runs(runs: Iterable[StoredRun]) -> list[Group]:
    """Put runs that differ only in their seed into groups, in the order of their first runs.

    Runs without an evaluated round are left out. Of several runs with the same configuration and seed, the one with
    the most rounds is used, so that an interrupted run does not appear next to its repetition.
    """
    found: dict[str, dict[int, StoredRun]] = {}
    for run in runs:
        if not run.evaluated:
            continue
        seeds = found.setdefault(identity(run.table, without=("seed",)), {})
        if run.seed not in seeds or len(seeds[run.seed].records) < len(run.records):
            seeds[run.seed] = run
    members = [[seeds[seed] for seed in sorted(seeds)] for seeds in found.values()]
    labels = make_labels([group[0] for group in members])
    return [Group(label, group) for label, group in zip(labels, members, strict=True)]


def common_settings(groups: Sequence[Group]) -> str:
    """What all groups share, on one line: the settings and the seeds."""
    seeds = sorted({seed for group in groups for seed in group.seeds})
    named = f"{'seeds' if len(seeds) > 1 else 'seed'} {', '.join(map(str, seeds))}"
    return f"{shared_settings([group.first for group in groups])}; {named}"
