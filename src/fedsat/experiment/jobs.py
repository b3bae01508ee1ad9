"""The runs of a comparison: one for each method, choice of a grid, and seed."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from fedsat.algorithms import algorithms
from fedsat.errors import UsageError, unknown
from fedsat.experiment.config import Config, read
from fedsat.experiment.defaults import Given
from fedsat.experiment.folder import CONFIG
from fedsat.experiment.parts import method_parts
from fedsat.experiment.settings import full_name, names_a_part, override, setting_names
from fedsat.experiment.store import file_name, identity
from fedsat.options import options_of

MOST_SEEDS = 10_000
"""The most runs of one method and choice."""

TAKEN_FROM = {"seed": "--seed and --seeds", "algorithm": "--methods"}
"""Settings for which a comparison has its own options."""

Choice = tuple[tuple[str, Any], ...]
"""Settings of a grid, each with one of its values."""

T = TypeVar("T")


@dataclass(frozen=True)
class Job:
    """A run to train, and its name on screen and on disk."""

    label: str
    config: Config


@dataclass(frozen=True)
class Contender:
    """A method with its settings, and the values of the grid that apply to it."""

    given: Given
    name: str
    """The method as the user wrote it, such as `fedsat-pwa`."""
    settings: Sequence[tuple[str, Any]]
    """Settings for all methods that have them."""
    grid: Mapping[str, Sequence[Any]]
    seeds: int

    @cached_property
    def table(self) -> dict[str, Any]:
        """The complete table of settings, without a choice of the grid."""
        return self.table_of(())

    def table_of(self, choice: Choice) -> dict[str, Any]:
        """Return the complete table of settings with a choice of the grid. A dataset in it brings its own defaults."""
        given = self.given.also((key, value) for key, value in choice if key in options_of(Config))
        own = override(given.table, *method_parts(self.name))
        parts = [(key, value) for key, value in self.settings if names_a_part(key)]  # they have options of their own
        own = override(own, _had(own, parts))
        return override(own, [*_had(own, self.settings), *choice])

    @property
    def method(self) -> str:
        """The method's name."""
        return Config.of(self.table).method

    @property
    def choices(self) -> list[Choice]:
        """All combinations of the grid's values; the last setting varies fastest."""
        return list(itertools.product(*([(key, value) for value in values] for key, values in self.grid.items())))

    def jobs(self, choice: Choice) -> list[Job]:
        """Return one job for each seed."""
        jobs, table = [], self.table_of(choice)
        for seed in range(table["seed"], table["seed"] + self.seeds):
            config = Config.of(override(table, [("seed", seed)]))
            words = [config.method, *(f"{key}={value}" for key, value in choice), f"seed{seed}"]
            jobs.append(Job("-".join(words), config))
        return jobs


def contenders(
    given: Given,
    methods: Sequence[str],
    seeds: int,
    settings: Sequence[tuple[str, Any]],
    grid: Sequence[tuple[str, Sequence[Any]]],
) -> list[Contender]:
    """Return one contender for each method. A method gets only the settings that it has."""
    if not 1 <= seeds <= MOST_SEEDS:
        raise UsageError(f"seeds must be a number from 1 to {MOST_SEEDS:,}")
    if not methods:
        raise UsageError(f"no method is given; known: {', '.join(algorithms)}")
    plain = [Contender(given, name, settings, {}, seeds) for name in dict.fromkeys(methods)]
    _check_names([key for key, _ in (*settings, *grid)], [each.table for each in plain])
    return [replace(each, grid=dict(_had(each.table, grid))) for each in plain]


def plan(
    given: Given,
    methods: Sequence[str],
    seeds: int,
    settings: Sequence[tuple[str, Any]],
    grid: Sequence[tuple[str, Sequence[Any]]],
) -> list[Job]:
    """Return one job for each method, choice of the grid and seed."""
    found = contenders(given, methods, seeds, settings, grid)
    return [job for contender in found for choice in contender.choices for job in contender.jobs(choice)]


def _had(table: Mapping[str, Any], settings: Iterable[tuple[str, T]]) -> list[tuple[str, T]]:
    """Return the settings that a method's table has."""
    known = setting_names(table)
    return [(key, value) for key, value in settings if key in known]


def _check_names(keys: Sequence[str], tables: Sequence[Mapping[str, Any]]) -> None:
    """Check that each name is a setting of some method, is given once, and has no option of the comparison."""
    given: set[str] = set()
    known = [setting_names(table) for table in tables]
    for key in keys:
        owner = next((table for table, names in zip(tables, known, strict=True) if key in names), None)
        if owner is None:
            raise unknown("setting", key, {name for names in known for name in names if "." not in name})
        full = full_name(owner, key)
        if full in TAKEN_FROM:
            raise UsageError(f"a comparison takes its {full} from {TAKEN_FROM[full]}")
        if full in given:
            raise UsageError(f"{full} is given twice; --grid {key}=A,B tries several values")
        given.add(full)


def folder_name(config: Config, what: str) -> str:
    """Return the name of a folder in `runs`, made from the data, the partition and the methods."""
    partition = config.table()["partition"]["name"]
    return file_name(f"{config.dataset_label}-{partition}-{what}")


def batch_folder(parent: Path, what: str, jobs: Sequence[Job]) -> Path:
    """Return the folder in `parent` for the runs of a comparison or a search.

    It is one that has runs of the same experiment, which may differ in method and seed, or else a new one. So a
    repeated command finds its runs, also with more methods or seeds, and another experiment gets its own folder.
    """
    wanted, name = _experiments(job.config.table() for job in jobs), folder_name(jobs[0].config, what)
    for number in itertools.count(1):
        folder = parent / (name if number == 1 else f"{name}-{number}")
        there = _experiments(_readable(folder.glob(f"*/{CONFIG}")))
        if not there or wanted & there:
            break
    return folder


def _readable(paths: Iterable[Path]) -> Iterator[Mapping[str, Any]]:
    """Yield the configurations that can be read; a damaged one belongs to another run, which says so itself."""
    for path in paths:
        with suppress(UsageError):
            yield read(path)


def _experiments(tables: Iterable[Mapping[str, Any]]) -> set[str]:
    return {identity(table, without=("algorithm", "seed")) for table in tables}
