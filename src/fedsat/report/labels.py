"""Labels that say what differs between runs, and one line that states what they share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from fedsat.algorithms import algorithms
from fedsat.experiment.config import PARTS
from fedsat.experiment.parts import KINDS, switches
from fedsat.experiment.settings import flatten
from fedsat.experiment.store import ONLY_HOW, StoredRun, completed

MAX_SETTINGS = 4
"""If a run differs from others in more settings than this, labels name only those that tell the runs apart."""
IGNORED = {"seed", "metrics", *ONLY_HOW}
"""Settings that labels and the line above the table omit: the user's metrics are columns of the table."""
STATED = ("dataset", "partition.name", "model.name", "clients", "per_round", "rounds")
"""Settings that are stated first, in words."""
NAMES = ("dataset", "partition.name", "model.name")
"""Settings whose value says what it is, so labels give it alone: `lsmc` instead of `partition=lsmc`."""


class Settings:
    """The settings of several runs by their full names, such as `algorithm.gamma`, ready to be compared."""

    def __init__(self, runs: Sequence[StoredRun]) -> None:
        self.runs = runs
        self.tables = [flatten(completed(run.table)) for run in runs]
        self.keys = [key for key in dict.fromkeys(k for t in self.tables for k in t) if key not in IGNORED]
        self._values: dict[tuple[str, ...], set[str]] = {}
        for table in self.tables:
            for key in self.keys:
                self._values.setdefault((key, *_parts(key, table)), set()).add(str(table.get(key)))

    def differs(self, key: str, run: int) -> bool:
        """Whether a setting differs between a run and the others that have the same parts.

        Options of a part, such as `partition.beta`, are not compared with those of another part.
        """
        return len(self._values[key, *_parts(key, self.tables[run])]) > 1

    @cached_property
    def differing(self) -> list[str]:
        """The settings that differ between some runs with the same parts."""
        found = {key for (key, *_), values in self._values.items() if len(values) > 1}
        return [key for key in self.keys if key in found]

    @cached_property
    def to_name(self) -> list[str]:
        """The settings that labels name besides the method, those of the method first."""
        keys = self.telling if self.abridged else self._unnamed
        return sorted(keys, key=lambda key: not key.startswith("algorithm."))

    @cached_property
    def _unnamed(self) -> list[str]:
        """The differing settings that the name of the method does not imply."""
        return [key for key in self.differing if not _in_method_name(key, self)]

    @cached_property
    def abridged(self) -> bool:
        """Whether runs differ in too many settings for labels to name all of them."""
        numbers = range(len(self.runs))
        return any(sum(self.differs(key, run) for key in self._unnamed) > MAX_SETTINGS for run in numbers)

    @cached_property
    def telling(self) -> list[str]:
        """A few settings that together tell the runs apart: data, partition and model, then the most telling ones."""
        known = sorted(self._unnamed, key=lambda key: STATED.index(key) if key in STATED else len(STATED))
        found = [key for key in NAMES if key in known]

        def told_apart(keys: Sequence[str]) -> int:
            pairs = zip(self.runs, self.tables, strict=True)
            return len({(run.method, *(str(table.get(key)) for key in keys)) for run, table in pairs})

        while known := [key for key in known if key not in found]:
            best = max(known, key=lambda key: told_apart([*found, key]))
            if told_apart([*found, best]) == told_apart(found):
                break
            found.append(best)
        return sorted(found, key=lambda key: key.startswith("algorithm."))

    def words(self, run: int) -> list[str]:
        """The settings that a run's label names.

        Of the `telling` ones, these are the ones in which it differs from runs that have its values of those before.
        """
        keys = [key for key in self.to_name if self.differs(key, run)]
        if self.abridged:
            keys = [key for key in keys if len(self._branches[self._branch(key, self.tables[run])]) > 1]
        return [self.written(key, run) for key in keys]

    @cached_property
    def _branches(self) -> dict[tuple[str, ...], set[str]]:
        """The values of each of the `telling` settings among runs that agree in those before."""
        found: dict[tuple[str, ...], set[str]] = {}
        for table in self.tables:
            for key in self.telling:
                found.setdefault(self._branch(key, table), set()).add(str(table.get(key)))
        return found

    def _branch(self, key: str, table: Mapping[str, Any]) -> tuple[str, ...]:
        before = self.telling[: self.telling.index(key)]
        return (key, *_parts(key, table), *(str(table.get(each)) for each in before))

    @property
    def name_methods(self) -> bool:
        """Whether labels name the method: not if all runs share it and only settings outside of it differ."""
        one = len({run.method for run in self.runs}) == 1
        return not (one and self.to_name and not self.to_name[0].startswith("algorithm."))

    def owner(self, part: str, run: int) -> str:
        """The run's part of a kind: its method, its partition, …"""
        if part == "algorithm":
            return self.runs[run].method
        return str(self.tables[run].get(f"{part}.name")) if part else ""

    def written(self, key: str, run: int) -> str:
        """Return a setting as `name=value`, with the shortest name that is unique among the run's settings."""
        value = self.tables[run].get(key)
        text = str(value).lower() if isinstance(value, bool) or value is None else str(value)
        if key == "dataset":
            paths = {str(table.get(key)) for table in self.tables}
            text = Path(text).name if Counter(Path(path).name for path in paths)[Path(text).name] == 1 else text
        if key in NAMES:
            return text
        return f"{_short_name(key, self.tables[run])}={text}"


def make_labels(runs: Sequence[StoredRun]) -> list[str]:
    """One label for each run, all of them different: its method, and the settings in which it differs from others."""
    settings, labels = Settings(runs), []
    for number, run in enumerate(runs):
        words = settings.words(number)
        labels.append(", ".join([run.method, *words] if settings.name_methods or not words else words))
    return _distinct(labels, runs)


def _distinct(labels: list[str], runs: Sequence[StoredRun]) -> list[str]:
    """Add the folder to labels that occur twice: its name if that is enough, its path otherwise."""
    for place in (lambda run: run.folder.name, lambda run: str(run.folder)):
        counts = Counter(labels)
        labels = [
            label if counts[label] == 1 else f"{label.partition(' (')[0]} ({place(run)})"
            for label, run in zip(labels, runs, strict=True)
        ]
    return labels


def shared_settings(runs: Sequence[StoredRun]) -> str:
    """What all runs share, on one line: data, partition, model, clients, rounds, and every setting that was changed."""
    settings = Settings(runs)
    table, differing = settings.tables[0], {*settings.differing}
    words = [] if settings.name_methods else [runs[0].method]
    words += [Path(str(table["dataset"])).name] if "dataset" not in differing else []
    if "partition.name" not in differing:
        options = [key for key in settings.keys if key.startswith("partition.") and key not in differing]
        words.append(" ".join(settings.written(key, 0) for key in options))
    words += [str(table["model.name"])] if "model.name" not in differing else []
    if "clients" not in differing:
        sampled = "" if "per_round" in differing else f"{table['per_round']} of "
        words.append(f"{sampled}{table['clients']} clients")
    words += [f"{table['rounds']} rounds"] if "rounds" not in differing else []
    line = ", ".join([*words, *_changed(settings)]) or "runs with different settings"
    return f"{line}; labels name only some of the settings that differ" if settings.abridged else line


def _changed(settings: Settings) -> list[str]:
    """Non-default settings that all runs share, or that all runs with the same part share; the label names the part."""
    found: dict[tuple[str, str], dict[str, None]] = {}
    for number, run in enumerate(settings.runs):
        defaults = flatten(completed(_parts_only(run.table)))
        for key, value in settings.tables[number].items():
            part = key.partition(".")[0] if "." in key else ""
            stated = key in STATED or (part == "partition" and "partition.name" not in settings.differing)
            if key in IGNORED or stated or settings.differs(key, number) or _in_method_name(key, settings):
                continue
            if key in defaults and value != defaults[key]:
                found.setdefault((part, settings.written(key, number)), {})[settings.owner(part, number)] = None
    texts = []
    for (part, text), owners in found.items():
        everyone = {settings.owner(part, number) for number in range(len(settings.runs))}
        texts.append(text if {*owners} == everyone else f"{text} ({', '.join(owners)})")
    return texts


def _parts_only(table: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration with its parts but none of their options, to be completed with defaults."""
    parts = {key: _names_only(key, value) for key, value in table.items() if key in PARTS}
    return {"dataset": table["dataset"], **parts}


def _names_only(kind: str, part: Mapping[str, Any]) -> dict[str, Any]:
    """A part by its name, with the parts of a method that it does not have by default; a preset sets their options."""
    usual = completed({kind: {"name": part["name"]}})[kind]
    nested = {key: {"name": value["name"]} for key, value in part.items() if isinstance(value, Mapping)}
    return {
        "name": part["name"],
        **{key: value for key, value in nested.items() if value["name"] != usual.get(key, {}).get("name")},
    }


def _parts(key: str, table: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of the parts that a setting belongs to: for FedSat's ε₂, the method and its objective."""
    steps = key.removesuffix(".name").split(".")[:-1]
    return tuple(str(table.get(".".join([*steps[: end + 1], "name"]))) for end in range(len(steps)))


def _in_method_name(key: str, settings: Settings) -> bool:
    """Whether the name of a method implies a setting, as `fedsat-pwa` implies its weighting."""
    part, _, option = key.partition(".")
    if part != "algorithm":
        return False
    names = {str(table["algorithm.name"]) for table in settings.tables if key in table}
    off = {switch for name in names if name in algorithms for switch in switches(name)}
    return option in {"name", *off, *(f"{kind}.name" for kind in KINDS)}


def _short_name(key: str, table: Mapping[str, Any]) -> str:
    """Return the shortest end of a setting's name that is unique among the run's settings: `epsilon2`."""
    names = {name.removesuffix(".name") for name in table} | {key.removesuffix(".name")}
    steps = key.removesuffix(".name").split(".")
    endings = (".".join(steps[start:]) for start in range(len(steps) - 1, 0, -1))
    free = (end for end in endings if sum(f".{name}".endswith(f".{end}") for name in names) == 1)
    return next(free, ".".join(steps))
