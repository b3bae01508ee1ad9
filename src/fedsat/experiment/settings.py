"""Settings by name: the changes that the command line, `fedsat.configure` and grids make to a configuration.

A name may be shortened as long as it is unambiguous: `gamma` for `algorithm.gamma`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from typing import Any

from fedsat.errors import UsageError, unknown
from fedsat.experiment.config import PARTS, Config, complete
from fedsat.experiment.legacy import modern_name, modern_table, modern_value, renamed, warn
from fedsat.experiment.parts import KINDS, switch_parts
from fedsat.models import FROM_DATA
from fedsat.options import OptionField, options_of

LEVELS = {**dict.fromkeys(PARTS, 0), **dict.fromkeys(KINDS, 1)}
"""Parts, outer ones first. A different part has different options, so parts are set before their options."""


def names_a_part(key: str) -> bool:
    """Whether a setting, given by its full or a shortened name, is a part with options."""
    return key.rpartition(".")[2] in LEVELS


def flatten(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested settings by their full names: `algorithm.gamma`."""
    flat: dict[str, Any] = {}
    for key, value in table.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {prefix + key: value}
    return flat


def override(
    table: Mapping[str, Any], settings: Iterable[tuple[str, Any]], on: Iterable[str] = (), off: Iterable[str] = ()
) -> dict[str, Any]:
    """Return `table`, completed, with settings such as ("gamma", 0.5) or ("algorithm.objective", "psl") changed.

    A name may be shortened as long as it is unambiguous. The order of the settings does not matter: parts are set
    first, then parts are added or left out (see `switch_parts`), and then options are set. Old names are accepted.
    """
    table = complete(modern_table(table))
    given = list(settings)
    warn(note for key, value in given for note in renamed({key: value}))
    settings = [(modern_name(key), modern_value(key, value)) for key, value in given]
    levels = [LEVELS.get(key.rpartition(".")[2], 2) for key, _ in settings]
    for wanted in (0, 1, 2):
        for (key, value), level in zip(settings, levels, strict=True):
            table = _put(table, key, value) if level == wanted else table
        if wanted == 1:
            table = complete({**table, "algorithm": switch_parts(table["algorithm"], on, off)})
    return table


def _put(table: dict[str, Any], key: str, value: Any) -> dict[str, Any]:
    """Return the table with one setting changed; naming the current part does not change its options."""
    *path, last = _find(table, key)
    place = table
    for step in path:
        place = place[step]
    current = place.get(last)
    if not (isinstance(current, dict) and current.get("name") == value):
        place[last] = value
    return complete(table)


def setting_names(table: Mapping[str, Any]) -> set[str]:
    """Return every name, full or shortened, of the settings of `table`; methods differ in their options."""
    paths = _paths(complete(table))
    return {".".join(path[start:]) for path in paths for start in range(len(path))}


def full_name(table: Mapping[str, Any], key: str) -> str:
    """Return a setting's full name, such as `algorithm.gamma` for `gamma`."""
    return ".".join(_find(complete(table), key))


def _find(table: Mapping[str, Any], key: str) -> tuple[str, ...]:
    """Return the full path of a setting, which may be given by the end of its path only."""
    full = {".".join(path): path for path in _paths(table)}
    if key in full:
        return full[key]
    matches = [name for name in full if name.endswith(f".{key}")]
    part, _, option = key.rpartition(".")
    if not matches and part in PARTS and not _options_of_part(full, part):
        others = ", ".join(name for name in PARTS[part] if name != table[part]["name"])
        raise UsageError(f"{option} has no effect, because {part} is {table[part]['name']}; set {part} to {others}")
    if not matches and part in PARTS:
        raise unknown(f"option of the {part} {table[part]['name']}:", option, _options_of_part(full, part))
    if not matches and (owners := _owners(key)):
        raise UsageError(f"unknown setting {key!r}; it is an option of {', '.join(owners)}, not of this run")
    if not matches:
        shorts = {name.rpartition(".")[2] for name in full}
        raise unknown("setting", key, full if "." in key else shorts)
    if len(matches) > 1:
        raise UsageError(f"{key!r} could mean {' or '.join(matches)}; write it in full")
    return full[matches[0]]


def _owners(option: str) -> list[str]:
    """Return the built-in parts that have an option of this name."""
    registries = (*PARTS.values(), *KINDS.values())
    own = ((registry, name) for registry in registries for name in registry if registry.is_own(name))
    return [name for registry, name in own if option in registry.options(name) and option not in FROM_DATA]


def _options_of_part(names: Iterable[str], part: str) -> list[str]:
    return [name.removeprefix(f"{part}.") for name in names if name.startswith(f"{part}.")]


def _paths(table: Mapping[str, Any]) -> list[tuple[str, ...]]:
    paths: list[tuple[str, ...]] = [(key,) for key in options_of(Config)]
    for part, registry in PARTS.items():
        options = registry.options(table[part]["name"])
        paths += [(part, key) for key in options if not (part == "model" and key in FROM_DATA)]
        paths += _nested_paths((part,), table[part], options)
    return paths


def _nested_paths(
    path: tuple[str, ...], table: Mapping[str, Any], options: Mapping[str, OptionField]
) -> list[tuple[str, ...]]:
    nested: list[tuple[str, ...]] = []
    for key, field in options.items():
        if field.option.among is not None:
            nested += [(*path, key, option) for option in field.option.among.options(table[key]["name"])]
    return nested


def parse_value(text: str) -> Any:
    """Return the value of `--set key=value`: a number, true or false, a list, or otherwise text."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def parse_values(text: str) -> list[Any]:
    """Return the values of a list separated by commas, parsed like `parse_value`; lists keep their own commas."""
    try:
        return list(tomllib.loads(f"values = [{text}]")["values"])
    except tomllib.TOMLDecodeError:
        return [parse_value(part.strip()) for part in text.split(",") if part.strip()]
