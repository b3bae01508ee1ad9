"""The parts of a method: adding them, leaving them out, and the name of the result.

`fedsat:paper` is a preset of `fedsat`. `fedavg+psl` is FedAvg with another objective, and `fedsat-pwa` is FedSat
without its weighting. Parts are registered, user-defined (`module:Name`), or switches of an algorithm
(`Option(switch=True)`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from fedsat.algorithms import Algorithm, aggregators, algorithms, objectives, weightings
from fedsat.errors import UsageError, unknown
from fedsat.registry import Registry

KINDS: dict[str, Registry[Any]] = {"objective": objectives, "weighting": weightings, "aggregator": aggregators}
"""The kinds of parts. Every method has one of each."""


def plain(kind: str) -> str:
    """Return the name of FedAvg's part of this kind."""
    return KINDS[kind].name_of(getattr(Algorithm(), kind))


def part_names() -> list[str]:
    """Return the registered parts that can be added to a method."""
    return [name for kind, registry in KINDS.items() for name in registry if name != plain(kind)]


def kind_of(part: str) -> str | None:
    """Return the kind of a part, given by name or as `module:Name`, or None if there is no such part."""
    for kind, registry in KINDS.items():
        if part in registry or (":" in part and registry.holds(part)):
            return kind
    return None


def switches(algorithm: str) -> list[str]:
    """Return the parts of an algorithm that can only be left out; none if it cannot be imported."""
    try:
        options = algorithms.options(algorithm)
    except UsageError:
        return []
    return [name for name, field in options.items() if field.option.switch]


def method_name(algorithm: Algorithm) -> str:
    """Return the algorithm's name with the parts added or left out: `fedsat`, `fedavg+psl`, `fedsat-pwa`."""
    name = base = algorithms.name_of(algorithm)
    usual = algorithms.options(base)
    for kind, registry in KINDS.items():
        used, default = getattr(algorithm, kind), usual[kind].default
        if type(used) is not type(default):
            left_out = registry.name_of(used) == plain(kind)
            name += f"-{registry.name_of(default)}" if left_out else f"+{registry.name_of(used)}"
    off = [switch for switch in switches(base) if usual[switch].default and not getattr(algorithm, switch)]
    return name + "".join(f"-{switch}" for switch in off)


def switch_parts(method: Mapping[str, Any], on: Iterable[str], off: Iterable[str]) -> dict[str, Any]:
    """Add parts to an algorithm's complete table, and leave parts out of it."""
    method = dict(method)
    for part in on:
        kind = kind_of(part)
        if kind is None:
            raise unknown("part to add:", part, part_names())
        if _name(method[kind]) != part:
            method[kind] = part
    for part in off:
        own = switches(method["name"])
        kind = kind_of(part)
        if kind is None and part not in own:
            raise unknown("part to leave out:", part, [*part_names(), *own])
        if part in own and method.get(part):
            method[part] = False
        elif kind is not None and _name(method[kind]) == part != plain(kind):
            method[kind] = plain(kind)
        else:
            raise UsageError(f"{method['name']} has no part {part!r} to leave out")
    return method


def _name(part: Any) -> str:
    return str(part["name"] if isinstance(part, Mapping) else part)


def method_parts(label: str) -> tuple[list[tuple[str, str]], list[str], list[str]]:
    """Split a method's name into its algorithm, the parts added, and the parts left out."""
    on: list[str] = []
    off: list[str] = []
    name = label
    while name not in algorithms:
        bases = [algorithm for algorithm in algorithms if name.startswith((f"{algorithm}+", f"{algorithm}-"))]
        known = [*part_names(), *(switch for algorithm in bases for switch in switches(algorithm))]
        ending = next((part for part in known if name.endswith((f"+{part}", f"-{part}"))), None)
        own = re.fullmatch(r"(.+?)([+-])([\w.]+:\w+)", name) if ending is None else None
        cut = own.start(2) if own else len(name) - len(ending) - 1 if ending else max(name.rfind("+"), name.rfind("-"))
        if cut <= 0:
            break
        (on if name[cut] == "+" else off).append(name[cut + 1 :])
        name = name[:cut]
    if name not in algorithms and ":" not in name:  # the registry will report the unknown name
        return [("algorithm", label)], [], []
    return [("algorithm", name)], on, off
