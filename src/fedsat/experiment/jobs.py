"""The runs of a comparison: one for each method, choice of a grid, and seed."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from fedsat.algorithms import algorithms
from fedsat.errors import UsageError, unknown
from fedsat.experiment.config import Config
from fedsat.experiment.parts import method_parts
from fedsat.experiment.settings import full_name, names_a_part, override, setting_names
from fedsat.experiment.store import file_name

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

    table: dict[str, Any]
    grid: Mapping[str, Sequence[Any]]
    seeds: int

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
        jobs = []
        for seed in range(self.table["seed"], self.table["seed"] + self.seeds):
            config = Config.of(override(self.table, [*choice, ("seed", seed)]))
            words = [config.method, *(f"{key}={value}" for key, value in choice), f"seed{seed}"]
            jobs.append(Job("-".join(words), config))
        return jobs


def contenders(
    table: Mapping[str, Any],
    methods: Sequence[str],
    seeds: int,
    settings: Sequence[tuple[str, Any]],
    grid: Sequence[tuple[str, Sequence[Any]]],
) -> list[Contender]:
    """Return one contender for each method. A method gets only the settings that it has."""
    if not methods:
        raise UsageError(f"no method is given; known: {', '.join(algorithms)}")
    tables = [override(table, *method_parts(name)) for name in dict.fromkeys(methods)]
    parts = [(key, value) for key, value in settings if names_a_part(key)]  # they have options of their own
    tables = [override(own, _had(own, parts)) for own in tables]
    _check_names([key for key, _ in (*settings, *grid)], tables)
    owns = [override(plain, _had(plain, settings)) for plain in tables]
    return [Contender(own, dict(_had(own, grid)), seeds) for own in owns]


def plan(
    table: Mapping[str, Any],
    methods: Sequence[str],
    seeds: int,
    settings: Sequence[tuple[str, Any]],
    grid: Sequence[tuple[str, Sequence[Any]]],
) -> list[Job]:
    """Return one job for each method, choice of the grid and seed."""
    found = contenders(table, methods, seeds, settings, grid)
    return [job for contender in found for choice in contender.choices for job in contender.jobs(choice)]


def _had(table: Mapping[str, Any], settings: Iterable[tuple[str, T]]) -> list[tuple[str, T]]:
    """Return those of the settings that a method's table has."""
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
