"""Typed, range-checked options of the parts that users choose by name (`fedsat.registry`).

A part is any class: an algorithm, a partition, a model. Its options are the keyword parameters of its constructor. An
`Option` in the annotation adds the meaning and the range:

    gamma: Annotated[float, Option("γ, strength of the correction", at_least=0)] = 0.9

One mechanism serves configuration files, the command line, `fedsat list` and the checks on construction.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fedsat.errors import UsageError, unknown

if TYPE_CHECKING:
    from fedsat.registry import Registry

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
