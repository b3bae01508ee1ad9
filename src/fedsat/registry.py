"""Registries: the parts of each kind by name, those of fedsat, of other packages, and your own as `module:Name`."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any, Generic, TypeVar

from fedsat.entry_points import load_offer, offers, package_of
from fedsat.errors import UsageError, unknown
from fedsat.options import OptionField, Spec, options_of

T = TypeVar("T")


@dataclass(frozen=True)
class Entry(Generic[T]):
    """A registered part: its class, and the options that a preset sets."""

    part: Callable[..., T]
    preset: Mapping[str, Any]
    summary: str

    def make(self, **options: Any) -> T:
        """Call the part, which may be a user's. If that tries to end the program, this is an error."""
        try:
            return self.part(**options)
        except SystemExit as end:
            if type(end) is not SystemExit:  # a signal: see `fedsat.experiment.interrupt`
                raise
            name = f"{self.part.__module__}:{self.part.__qualname__}"
            raise UsageError(f"{name} calls sys.exit({end.code!r}) when it is created; raise an error instead") from end


class Registry(Generic[T]):
    """Parts of one kind by name: fedsat's, those of packages (entry points in `group`), and `module:Name`."""

    def __init__(self, kind: str, base: type[T], group: str) -> None:
        self.kind, self.group = kind, group
        self._base = base
        self._entries: dict[str, Entry[T]] = {}
        self._aliases: dict[str, str] = {}

    def register(self, name: str) -> Callable[[type[T]], type[T]]:
        """Return a class decorator that adds the class under `name`; its docstring's first line is the summary."""

        def add(part: type[T]) -> type[T]:
            self._entries[name] = Entry(part, {}, _first_line(part))
            return part

        return add

    def preset(self, name: str, of: str, summary: str, **options: Any) -> None:
        """Add `name` as the part `of` with other defaults."""
        self._entries[name] = Entry(self._entries[of].part, options, summary)

    def alias(self, name: str, of: str) -> None:
        """Add `name` as an alias of the part `of`. Runs record the original name."""
        self._aliases[name] = of

    def __iter__(self) -> Iterator[str]:
        return iter([*self._entries, *self.offers])

    def __contains__(self, name: str) -> bool:
        return name in self._entries or name in self.offers

    def is_own(self, name: str) -> bool:
        """Whether `name` is a part of fedsat itself, which is imported already."""
        return self._aliases.get(name, name) in self._entries

    @property
    def offers(self) -> dict[str, EntryPoint]:
        """The parts of other packages by name, except names that fedsat itself uses."""
        own = {*self._entries, *self._aliases}
        return {name: point for name, point in offers(self.group).items() if name not in own}

    def entry(self, name: str) -> Entry[T]:
        """Return the part called `name`, or the class that `module:Name` refers to."""
        name = self._aliases.get(name, name)
        if name in self._entries:
            return self._entries[name]
        preset_of, label = name.partition(":")[0], name
        if name in self.offers:
            point = self.offers[name]
            part, label = load_offer(self.kind, point), f"{name!r} of the package {package_of(point)}"
        elif ":" in name and preset_of not in self._entries:
            part = import_object(self.kind, name)
        else:
            raise unknown(self.kind, name, self)
        if not self._is_part(part):
            raise UsageError(f"{label} cannot be used as {self.kind}: it is not a {self._base.__qualname__}")
        return Entry(part, {}, _first_line(part))

    def holds(self, path: str) -> bool:
        """Whether `module:Name` refers to a part of this kind."""
        return self._is_part(import_object(self.kind, path))

    def _is_part(self, part: Any) -> bool:
        return inspect.isclass(part) and issubclass(part, self._base)

    def options(self, name: str) -> dict[str, OptionField]:
        """Return the options of the part called `name`, with the preset's values as defaults."""
        entry = self.entry(name)
        return {
            key: dataclasses.replace(field, default=entry.preset.get(key, field.default))
            for key, field in options_of(entry.part).items()
        }

    def arguments(self, spec: Spec) -> tuple[str, dict[str, Any]]:
        """Split a spec into the part's name and its checked options, including those of the preset."""
        if isinstance(spec, str):
            spec = {"name": spec}
        if "name" not in spec:
            raise UsageError(f"the {self.kind} needs a name, one of {', '.join(self)}")
        name = self._aliases.get(str(spec["name"]), str(spec["name"]))
        fields = self.options(name)
        values = {key: value for key, value in self.entry(name).preset.items() if key not in spec}
        values |= {key: value for key, value in spec.items() if key != "name"}
        for key, value in values.items():
            if key not in fields:
                raise unknown(f"option of {self.kind} {name!r}:", key, fields)
            values[key] = fields[key].check(value, self.kind)
        return name, values

    def build(self, spec: Spec) -> T:
        """Build the part that a spec describes."""
        name, values = self.arguments(spec)
        missing = [key for key, field in self.options(name).items() if field.required and key not in values]
        if missing:
            how = " ".join(f"--set {key}=…" for key in missing)
            raise UsageError(f"{self.kind} {name!r} needs a value for {', '.join(missing)}; set it with {how}")
        return self.entry(name).make(**values)

    def name_of(self, part: T) -> str:
        """Return the name of `part`: of its preset, of its class, in its package, or `module:Name`."""
        for name, entry in self._entries.items():
            if entry.preset and type(part) is entry.part and part == self.build(name):
                return name
        kind = type(part)
        named = [name for name, entry in self._entries.items() if entry.part is kind and not entry.preset]
        # The package that defines this class has been imported already, so no other one needs to be.
        named += [name for name, point in self.offers.items() if _imported(point) is kind]
        return named[0] if named else f"{kind.__module__}:{kind.__qualname__}"

    def complete(self, spec: Any) -> dict[str, Any]:
        """Return a spec or a part as a table with every option, including defaults; nothing is checked."""
        if isinstance(spec, self._base):
            spec = {"name": self.name_of(spec), **vars(spec)}
        elif isinstance(spec, str):
            spec = {"name": spec}
        if not isinstance(spec, Mapping) or "name" not in spec:
            raise UsageError(f"the {self.kind} needs a name, one of {', '.join(self)}; not {spec!r}")
        table = {**spec, "name": self._aliases.get(str(spec["name"]), spec["name"])}
        for key, field in self.options(str(spec["name"])).items():
            value = spec.get(key, field.default)
            if field.option.among is not None:
                table[key] = field.option.among.complete(value)
            elif value is not None and value is not inspect.Parameter.empty:
                table[key] = _plain(value)
        return table


def _plain(value: Any) -> Any:
    """Return a value that a configuration file can store."""
    if isinstance(value, tuple):
        return list(value)
    return str(value) if isinstance(value, Path) else value


def _first_line(part: Any) -> str:
    return (inspect.getdoc(part) or "").partition("\n")[0]


def _imported(point: EntryPoint) -> Any:
    return getattr(sys.modules.get(point.module), point.attr, None)


def import_object(kind: str, path: str) -> Any:
    """Return the object that `module:Name` refers to; modules in the current folder are found as well."""
    module_name, _, attribute = path.partition(":")
    sys.path.insert(0, str(Path.cwd()))
    try:
        module = importlib.import_module(module_name)
    except (ImportError, ValueError, TypeError, SyntaxError) as error:
        raise UsageError(f"cannot import {module_name!r} for the {kind} {path!r}: {error}") from error
    except SystemExit as end:
        raise UsageError(f"cannot import {module_name!r} for the {kind} {path!r}: it calls sys.exit") from end
    finally:
        sys.path.remove(str(Path.cwd()))
    if not hasattr(module, attribute):
        raise unknown(f"name in module {module_name!r}:", attribute, (n for n in vars(module) if not n.startswith("_")))
    return getattr(module, attribute)
