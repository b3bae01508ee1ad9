"""The runs of a comparison: one for each method, choice of a grid, and seed."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from fedsat.algorithms import algorithms
from fedsat.errors import UsageError, unknown
from fedsat.experiment.config import Config, full_name, names_a_part, override, setting_names
from fedsat.experiment.parts import method_parts
from fedsat.experiment.store import file_name

TAKEN_FROM = {"seed": "--seed and --seeds", "algorithm": "--methods"}
"""Settings for which a comparison has its own options."""

T = TypeVar("T")


@dataclass(frozen=True)
class Job:
    """A run to train, and its name on screen and on disk."""

    label: str
    config: Config


def plan(
    table: Mapping[str, Any],
    methods: Sequence[str],
    seeds: int,
    settings: Sequence[tuple[str, Any]],
    grid: Sequence[tuple[str, Sequence[Any]]],
) -> list[Job]:
    """One job for each method, choice of the grid and seed. A method gets only the settings that it has."""
    if not methods:
        raise UsageError(f"no method is given; known: {', '.join(algorithms)}")
    tables = [override(table, *method_parts(name)) for name in dict.fromkeys(methods)]
    parts = [(key, value) for key, value in settings if names_a_part(key)]  # they have options of their own
    tables = [override(own, _had(own, parts)) for own in tables]
    _check_names([key for key, _ in (*settings, *grid)], tables)
    jobs = []
    for plain in tables:
        own = override(plain, _had(plain, settings))
        choices = [[(key, value) for value in values] for key, values in _had(own, grid)]
        for chosen in itertools.product(*choices):
            for seed in range(own["seed"], own["seed"] + seeds):
                config = Config.of(override(own, [*chosen, ("seed", seed)]))
                words = [config.method, *(f"{key}={value}" for key, value in chosen), f"seed{seed}"]
                jobs.append(Job("-".join(words), config))
    return jobs


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
