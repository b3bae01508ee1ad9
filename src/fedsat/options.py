"""Parts that users choose by name, and their typed, range-checked options.

A part is any class: an algorithm, a partition, a model. Its options are the keyword parameters of its constructor. An
`Option` in the annotation adds the meaning and the range:

    gamma: Annotated[float, Option("γ, strength of the correction", at_least=0)] = 0.9

One mechanism serves configuration files, the command line, `fedsat list` and the checks on construction.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
import math
import sys
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

from fedsat.entry_points import load_offer, offers, package_of
from fedsat.errors import UsageError, unknown

T = TypeVar("T")
LARGEST = 2**63
"""A bound of integers, above any that is of use."""

Spec = str | Mapping[str, Any]
"""A part as written in a configuration: its name, or a table with `name` and options."""


@dataclass(frozen=True)
class Option:
    """What an option means and which values it may take."""

    help: str
    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    below: float | None = None
    among: Registry[Any] | None = None
    """If the option is itself a part: the registry that it is chosen from."""
    switch: bool = False
    """Whether a Boolean option is a part of the method that `--without` can leave out by its name."""

    def violated(self, value: float) -> str | None:
        """Describe the rule that `value` violates, or return None."""
        if self.at_least is not None and not value >= self.at_least:
            return f"at least {self.at_least:g}"
        if self.above is not None and not value > self.above:
            return f"above {self.above:g}"
        if self.at_most is not None and not value <= self.at_most:
            return f"at most {self.at_most:g}"
        if self.below is not None and not value < self.below:
            return f"below {self.below:g}"
        return None


@dataclass(frozen=True)
class OptionField:
    """One option of a part, as found in its constructor."""

    name: str
    type: Any
    default: Any
    option: Option

    @property
    def required(self) -> bool:
        """Whether the part cannot be built without it."""
        return self.default is inspect.Parameter.empty

    def check(self, value: Any, where: str) -> Any:
        """Return `value` in the option's type, or raise a `UsageError` that names the option."""
        if self.option.among is not None:
            return self.option.among.build(value) if isinstance(value, str | Mapping) else value
        label = f"{where}.{self.name}" if where else self.name
        value = coerce(value, self.type, label)
        for number in value if isinstance(value, tuple) else (value,):
            if isinstance(number, int | float) and not isinstance(number, bool):
                rule = self.option.violated(number)
                if rule is not None:
                    raise UsageError(f"{label} is {number:g}; it must be {rule} ({self.option.help})")
        return value


@functools.cache
def options_of(part: Callable[..., Any]) -> dict[str, OptionField]:
    """Return the options of a part, in the order of its constructor."""
    # The generated constructor of a dataclass cannot resolve its annotations; the class can.
    annotated = part if dataclasses.is_dataclass(part) or not inspect.isclass(part) else part.__init__
    hints = typing.get_type_hints(annotated, include_extras=True)
    fields = {}
    for name, parameter in inspect.signature(part).parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        hint = hints.get(name, Any)
        option = Option("")
        if typing.get_origin(hint) is typing.Annotated:
            hint, *notes = typing.get_args(hint)
            option = next((note for note in notes if isinstance(note, Option)), option)
        fields[name] = OptionField(name, hint, parameter.default, option)
    return fields


def coerce(value: Any, kind: Any, label: str) -> Any:
    """Return `value` as `kind`: integers become floats, lists become tuples, and strings become paths or tuples."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if isinstance(value, int) and abs(value) >= LARGEST:
        raise UsageError(f"{label} has {len(str(abs(value)))} digits, which is too large")
    if kind is Any or kind is inspect.Parameter.empty:
        return value
    if origin is Literal:
        if value not in arguments:
            raise unknown(label, str(value), map(str, arguments))
        return value
    if origin in (typing.Union, types.UnionType):
        return _coerce_one_of(value, arguments, label)
    if origin is tuple:
        if isinstance(value, str) and arguments[0] is str:
            value = [item.strip() for item in value.split(",") if item.strip()]
        if not isinstance(value, list | tuple):
            raise UsageError(f"{label} is {value!r}; it must be a list such as [80, 60]")
        return tuple(coerce(item, arguments[0], label) for item in value)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if kind is Path and isinstance(value, str):
        return Path(value)
    if isinstance(value, float) and math.isinf(value):
        raise UsageError(f"{label} is {value}; it must be finite")
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise UsageError(f"{label} is {value!r}; it must be {_in_words(kind)}")
    return value


def _coerce_one_of(value: Any, kinds: Iterable[Any], label: str) -> Any:
    """Return `value` as one of the kinds: None, a word as in `int | Literal["all"]`, or the first of the types."""
    words = [word for kind in kinds for word in typing.get_args(kind)]
    named, *others = (kind for kind in kinds if typing.get_origin(kind) is not Literal and kind is not type(None))
    if value in words or (value is None and type(None) in kinds) or isinstance(value, tuple(others)):
        return value
    try:
        return coerce(value, named, label)
    except UsageError as error:
        raise UsageError(" or ".join([str(error), *map(repr, words)])) from None


def _in_words(kind: Any) -> str:
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "text", Path: "a path"}
    return words.get(kind, f"a {getattr(kind, '__name__', kind)}")


def check(part: Any, where: str = "") -> None:
    """Check and coerce the fields of a frozen dataclass. Call it in `__post_init__`."""
    for name, field in options_of(part.__class__).items():
        object.__setattr__(part, name, field.check(getattr(part, name), where))


def _plain(value: Any) -> Any:
    """Return a value that a configuration file can store."""
    if isinstance(value, tuple):
        return list(value)
    return str(value) if isinstance(value, Path) else value


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
