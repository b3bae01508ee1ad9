"""`fedsat list`: what there is to choose from, with every option, its default and its meaning."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.console import Console

from fedsat.algorithms import algorithms, objectives, weightings
from fedsat.cli.data import datasets_table
from fedsat.data import partitions
from fedsat.errors import unknown
from fedsat.models import FROM_DATA, models
from fedsat.options import Registry

KINDS: dict[str, Registry[Any]] = {
    "algorithms": algorithms,
    "objectives": objectives,
    "weightings": weightings,
    "models": models,
    "partitions": partitions,
}


def show(what: Annotated[str, typer.Argument(help=f"datasets, {', '.join(KINDS)}")]) -> None:
    """List what can be chosen by name, with options, defaults and meanings."""
    console = Console()
    if what == "datasets":
        console.print(datasets_table())
    elif what in KINDS:
        print_parts(console, KINDS[what])
    else:
        raise unknown("list", what, ["datasets", *KINDS])


def print_parts(console: Console, registry: Registry[Any]) -> None:
    """The parts of one kind, each with a line for every option."""
    for name in registry:
        entry = registry.entry(name)
        console.print(f"[bold]{name}[/bold]  {entry.summary}", highlight=False)
        for key, field in registry.options(name).items():
            if key in FROM_DATA or (entry.preset and key not in entry.preset):
                continue
            default = field.default
            if field.option.among is not None:
                default = field.option.among.name_of(default)
            console.print(f"    {key} = {_written(default)}", end="  ", highlight=False, markup=False)
            console.print(field.option.help, style="dim", highlight=False, markup=False)
    console.print("or a class of your own, as module:Name", style="dim", highlight=False)


def _written(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return str(list(value)) if isinstance(value, tuple) else str(value)
