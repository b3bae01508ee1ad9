"""The options of a run on the command line, made from the configuration itself so that both always agree."""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from fedsat.errors import UsageError
from fedsat.experiment.config import Config, override, parse_value, read
from fedsat.experiment.parts import part_names
from fedsat.options import OptionField, options_of

PARTITION_OPTIONS = {
    "classes_per_client": (int, "classes of a client (lsmc), or the fewest it has (lqsmc)"),
    "beta": (float, "β of the Dirichlet distribution (ls, quantity): smaller is more skewed"),
}
"""Options of the partition that have a flag of their own."""


AtOnce = Annotated[int, typer.Option("--jobs", help="runs carried out at once, each in a process of its own", min=1)]

METAVARS = {int: "N", float: "NUMBER", str: "NAME"}


def configured(
    *, without: tuple[str, ...] = (), also: type | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command every option of a run, and hand it the resulting table of settings as its first argument.

    `without` names settings that mean nothing to the command, or that it has its own word for; `also` is a part whose
    options it has as well, handed over as its second argument, those that were given.
    """

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        extra = [] if also is None else [flag for flag in _flags(also) if flag.name not in without]
        taken = list(inspect.signature(command, eval_str=True).parameters.values())[1 if also is None else 2 :]
        own = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in taken]
        run_options = [parameter for parameter in _parameters() if parameter.name not in without]

        @functools.wraps(command)
        def wrapper(**given: Any) -> Any:
            mine = {parameter.name: given.pop(parameter.name) for parameter in own}
            others = {parameter.name: given.pop(parameter.name) for parameter in extra}
            asked = {name: value for name, value in others.items() if value is not None}
            return command(settings_table(given), *([] if also is None else [asked]), **mine)

        parameters = [*run_options, *extra, *own]
        wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        wrapper.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        del wrapper.__wrapped__  # typer would look through to the command's own signature
        return wrapper

    return decorate


def settings_table(given: dict[str, Any]) -> dict[str, Any]:
    """The complete table of settings that a file and options ask for, options last."""
    config_file, sets = given.pop("config_file"), given.pop("set_", None) or []
    on, off = given.pop("with_", None), given.pop("without", None)
    settings = [
        (f"partition.{key}" if key in PARTITION_OPTIONS else key, value)
        for key, value in given.items()
        if value is not None
    ]
    base = read(config_file, tell=True) if config_file else {}
    return override(base, [*settings, *read_settings(sets)], _names(on), _names(off))


def split_setting(text: str, option: str) -> tuple[str, str]:
    """The two sides of `key=value`, as given to `option`."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise UsageError(f"{option} takes key=value, not {text!r}")
    return key.strip(), value.strip()


def read_settings(texts: list[str]) -> list[tuple[str, Any]]:
    """The settings that `--set key=value`, repeated, asks for."""
    pairs = [split_setting(text, "--set") for text in texts]
    return [(key, parse_value(value)) for key, value in pairs]


def _names(text: str | None) -> list[str]:
    return [name.strip() for name in (text or "").split(",") if name.strip()]


def _parameters() -> list[inspect.Parameter]:
    """One keyword parameter for each setting, with typer's description of it."""
    file = typer.Argument(metavar="[CONFIG.toml]", help="settings of a run; options override them", show_default=False)
    parameters = [_parameter("config_file", Path, file), *_flags(Config)]
    for name, (kind, text) in PARTITION_OPTIONS.items():
        parameters.append(_parameter(name, kind, _flag(name, text, METAVARS[kind])))
    parameters += [
        _parameter("without", str, _flag("without", "leave out parts: psl, correction, pwa", "PARTS")),
        _parameter("with_", str, _flag("with", f"put parts on a method: {', '.join(part_names())}", "PARTS")),
        _parameter("set_", list[str], _flag("set", "any other setting; may be repeated", "KEY=VALUE")),
    ]
    return parameters


def _flags(part: type) -> list[inspect.Parameter]:
    """One keyword parameter for each option of a part."""
    parameters = []
    for name, field in options_of(part).items():
        help_text = f"{field.option.help} [{_default(field)}]" if _default(field) else field.option.help
        kind = _flag_type(field.type)
        parameters.append(_parameter(name, kind, _flag(name, help_text, METAVARS[kind])))
    return parameters


def _parameter(name: str, kind: Any, info: Any) -> inspect.Parameter:
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, info]
    )


def _flag(name: str, text: str, metavar: str) -> Any:
    return typer.Option(f"--{name.replace('_', '-')}", help=text, metavar=metavar, show_default=False)


def _flag_type(kind: Any) -> Any:
    """What the command line reads for a setting: numbers as such, everything else as text."""
    kinds = {part for part in (kind, *typing.get_args(kind)) if part in (int, float)}
    return kinds.pop() if kinds else str


def _default(field: OptionField) -> str:
    """A setting's default, as the user would write it."""
    if field.option.among is not None:
        return field.option.among.name_of(field.default)
    return "" if field.default is None else str(field.default)
