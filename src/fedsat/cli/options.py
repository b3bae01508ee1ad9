"""The options of a run on the command line, made from the configuration so that both always agree."""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from fedsat.algorithms import SGD
from fedsat.cli.sections import COMPARISON, MACHINE, ORDER, OTHER, OUTPUT, SECTIONS, flag, section_of
from fedsat.errors import UsageError
from fedsat.experiment.config import Config, read
from fedsat.experiment.defaults import Given
from fedsat.experiment.parts import part_names
from fedsat.experiment.settings import parse_value, parse_values
from fedsat.options import OptionField, options_of
from fedsat.rounds import LrSchedule
from fedsat.rounds.privacy import Local

PARTITION_OPTIONS = {
    "classes_per_client": (int, "classes of each client (lsmc), or the fewest a client can have (lqsmc)"),
    "beta": (float, "β of the Dirichlet distribution (ls, hsu, quantity); smaller values give more skew"),
}
"""Options of the partition that are also options of the command line."""

PART_OPTIONS: dict[str, str] = {
    **dict.fromkeys(PARTITION_OPTIONS, "partition"),
    **dict.fromkeys(options_of(SGD), "optimizer"),
    **dict.fromkeys(options_of(LrSchedule), "lr_schedule"),
    **dict.fromkeys(options_of(Local), "privacy"),
}
"""All options of parts that are also options of the command line, and the setting of the part."""

KEYWORD = inspect.Parameter.KEYWORD_ONLY
METAVARS: dict[Any, str | None] = {int: "N", float: "NUMBER", str: "NAME", bool: None}

AtOnce = Annotated[
    int,
    typer.Option(
        "--jobs",
        help="runs to train at the same time, each in its own process",
        min=1,
        metavar="N",
        rich_help_panel=MACHINE,
    ),
]

Out = Annotated[
    Path | None,
    typer.Option(
        "--out",
        help="folder for the files [default: runs/ and a name made from the settings]",
        show_default=False,
        rich_help_panel=OUTPUT,
    ),
]

Methods = Annotated[
    str,
    typer.Option(
        "--methods",
        help="methods to compare, separated by commas; fedsat-pwa is a method without one of its parts, "
        "fedavg+psl a method with another part",
        metavar="NAMES",
        rich_help_panel=COMPARISON,
    ),
]
Seeds = Annotated[
    int,
    typer.Option(
        help="runs of each method, with --seed and the following seeds",
        min=1,
        metavar="N",
        rich_help_panel=COMPARISON,
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="any other setting, for all methods that have it; can be repeated",
        metavar="KEY=VALUE",
        show_default=False,
    ),
]
Grid = Annotated[
    list[str] | None,
    typer.Option(
        help="values of a setting to try; can be repeated, and then all combinations are tried",
        metavar="KEY=A,B,C",
        show_default=False,
        rich_help_panel=COMPARISON,
    ),
]


def configured(
    *, without: tuple[str, ...] = (), also: type | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command every option of a run, and pass it the settings that the user gave as its first argument.

    `without` names settings that the command does not have. `also` is a class whose options it has in addition; those
    that the user gave are passed as the second argument.
    """

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        extra = [] if also is None else [option for option in _options(also) if option.name not in without]
        taken = list(inspect.signature(command, eval_str=True).parameters.values())[1 if also is None else 2 :]
        own = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in taken]
        run_options = [parameter for parameter in _parameters() if parameter.name not in without]

        @functools.wraps(command)
        def wrapper(**given: Any) -> Any:
            mine = {parameter.name: given.pop(parameter.name) for parameter in own}
            others = {parameter.name: given.pop(parameter.name) for parameter in extra}
            chosen = {name: value for name, value in others.items() if value is not None}
            return command(settings_of(given), *([] if also is None else [chosen]), **mine)

        parameters = _ordered([*run_options, *extra, *own])
        wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        wrapper.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        del wrapper.__wrapped__  # otherwise typer reads the signature of the command itself
        return wrapper

    return decorate


def settings_of(given: dict[str, Any]) -> Given:
    """Return the settings in the configuration file and the options; options take precedence."""
    config_file, sets = given.pop("config_file"), given.pop("set_", None) or []
    on, off = given.pop("with_", None), given.pop("without", None)
    settings = [
        (f"{PART_OPTIONS[key]}.{key}" if key in PART_OPTIONS else key, value)
        for key, value in given.items()
        if value is not None
    ]
    base = read(config_file, warn_of_old=True) if config_file else None
    return Given([*settings, *read_settings(sets)], base, read_names(on), read_names(off))


def split_setting(text: str, option: str) -> tuple[str, str]:
    """Split `key=value`, as given to `option`."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise UsageError(f"{option} takes key=value, not {text!r}")
    return key.strip(), value.strip()


def read_settings(texts: list[str]) -> list[tuple[str, Any]]:
    """Return the settings in the values of `--set key=value`, which can be repeated."""
    pairs = [split_setting(text, "--set") for text in texts]
    return [(key, parse_value(value)) for key, value in pairs]


def read_grid(texts: list[str]) -> list[tuple[str, list[Any]]]:
    """Return the values to try in `--grid key=a,b,c`, which can be repeated."""
    grid = []
    for text in texts:
        key, values = split_setting(text, "--grid")
        parsed = parse_values(values)
        if not parsed:
            raise UsageError(f"--grid {text!r} gives {key} no value")
        grid.append((key, parsed))
    return grid


def read_names(text: str | None) -> list[str]:
    """Return the names in a list separated by commas."""
    return [name.strip() for name in (text or "").split(",") if name.strip()]


def _parameters() -> list[inspect.Parameter]:
    """Return one keyword parameter for each setting of a run, with its description for typer."""
    file = typer.Argument(metavar="[CONFIG.toml]", help="file with settings; options override it", show_default=False)
    parts = f"parts to add to the method, separated by commas: {', '.join(part_names())}"
    return [
        inspect.Parameter("config_file", KEYWORD, default=None, annotation=Annotated[Path | None, file]),
        *_options(Config),
        *(_option(name, kind, text, METAVARS[kind]) for name, (kind, text) in PARTITION_OPTIONS.items()),
        *_options(SGD),
        *_options(LrSchedule),
        *_options(Local),
        _option("with_", str, parts, "PARTS"),
        _option("without", str, "parts to remove from the method, such as psl, correction, pwa", "PARTS"),
        _option("set_", list[str], "any other setting, such as gamma=0.5; can be repeated", "KEY=VALUE"),
    ]


def _options(part: type) -> list[inspect.Parameter]:
    """Return one keyword parameter for each option of a class."""
    parameters = []
    for name, field in options_of(part).items():
        kind = _flag_type(field.type)
        words = [word for part in typing.get_args(field.type) for word in typing.get_args(part)]
        metavar = "|".join([METAVARS[kind] or "", *words]) if words else METAVARS[kind]
        metavar = "NAMES" if typing.get_origin(field.type) is tuple else metavar
        parameters.append(_option(name, kind, _help_text(field), metavar, parse_value if words else None))
    return parameters


def _option(
    name: str, kind: Any, text: str, metavar: str | None, parser: Callable[[str], Any] | None = None
) -> inspect.Parameter:
    """Return one parameter; `parser` reads a value that is a number or a word."""
    info = typer.Option(
        flag(name), help=text, metavar=metavar, parser=parser, show_default=False, rich_help_panel=section_of(name)
    )
    return inspect.Parameter(name, KEYWORD, default=None, annotation=Annotated[kind | None, info])


def _ordered(parameters: list[inspect.Parameter]) -> list[inspect.Parameter]:
    """Sort parameters by section, in the order of `SECTIONS`; a command's own options come last in each section."""

    def place(parameter: inspect.Parameter) -> tuple[int, int]:
        info = typing.get_args(parameter.annotation)[-1]
        return list(SECTIONS).index(info.rich_help_panel or OTHER), ORDER.get(parameter.name, len(ORDER))

    return sorted(parameters, key=place)


def _flag_type(kind: Any) -> Any:
    """Return the type that the command line converts a setting to: a number, a switch, or else text."""
    kinds = {part for part in (kind, *typing.get_args(kind)) if part in (int, float, bool)}
    return kinds.pop() if kinds else str


def _help_text(field: OptionField) -> str:
    """Return the meaning of a setting, its choices, and its default as the user would write it."""
    text = field.option.help.replace(" [", " [default: ")
    if typing.get_origin(field.type) is typing.Literal:
        text += f" ({', '.join(typing.get_args(field.type))})"
    if typing.get_origin(field.type) is tuple:
        text += "; separated by commas"
    default = field.default
    if field.option.among is not None:
        default = field.option.among.name_of(default)
    without = default is None or default is False or default in ((), "")
    return text if without else f"{text} [default: {default}]"
