"""`fedsat list`: what there is to choose from, with every option, its default and its meaning."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from fedsat.algorithms import Algorithm, aggregators, algorithms, footprint, objectives, weightings
from fedsat.cli.data import datasets_table
from fedsat.data import partitions
from fedsat.errors import unknown
from fedsat.models import FROM_DATA, models
from fedsat.options import OptionField, Registry, options_of
from fedsat.rounds import attacks

KINDS: dict[str, Registry[Any]] = {
    "methods": algorithms,
    "objectives": objectives,
    "weightings": weightings,
    "aggregators": aggregators,
    "attacks": attacks,
    "models": models,
    "partitions": partitions,
}


def show(
    what: Annotated[str | None, typer.Argument(help=f"datasets, {', '.join(KINDS)}", show_default=False)] = None,
) -> None:
    """List what can be chosen by name, with options, defaults and meanings."""
    console = Console()
    if what is None:
        for name in ("datasets", *KINDS):
            console.rule(name, align="left")
            show(name)
    elif what == "datasets":
        console.print(datasets_table())
    elif what in ("methods", "algorithms"):
        console.print(footprints_table())
        print_parts(console, algorithms, shared=options_of(Algorithm))
        say(console, "objectives, weightings and aggregators have options of their own: fedsat list objectives, …")
    elif what in KINDS:
        print_parts(console, KINDS[what])
    else:
        raise unknown("list", what, ["datasets", *KINDS])


def footprints_table() -> Table:
    """What each method keeps between rounds, sends in one, and averages by."""
    title = "models kept, and sent for every called client in a round"
    table = Table(title=title, box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False, collapse_padding=True)
    for heading in ("", "client keeps", "server keeps", "down", "up", "mean by"):
        table.add_column(heading, no_wrap=True)
    for name in algorithms:
        method = algorithms.build(name)
        sizes = footprint(method)
        workers = " + w−1" if method.weighting.needs_counts else ""
        table.add_row(
            name,
            ", ".join(sizes.client) or "–",
            ", ".join(sizes.server) or "–",
            f"{sizes.down}{workers}",
            str(sizes.up),
            weightings.name_of(method.weighting),
        )
    table.caption = "all kept things have a model's size; w−1: workers fetch the client's model"
    return table


def print_parts(console: Console, registry: Registry[Any], shared: Mapping[str, OptionField] | None = None) -> None:
    """The parts of one kind, each with a line for every option; those that all share come once, where they differ."""
    shared = shared or {}
    if shared:
        console.print("every method has", highlight=False)
    for field in shared.values():
        print_option(console, field)
    for name in registry:
        entry = registry.entry(name)
        console.print(f"[bold]{name}[/bold]  {entry.summary}", highlight=False)
        for key, field in registry.options(name).items():
            if key in FROM_DATA or field == shared.get(key) or (entry.preset and key not in entry.preset):
                continue
            print_option(console, field)
    say(console, "or a class of your own, as module:Name")


def print_option(console: Console, field: OptionField) -> None:
    """An option, its default and its meaning."""
    default = field.default
    if field.option.among is not None:
        default = field.option.among.name_of(default)
    value = f"{field.name}, to be given" if field.required else f"{field.name} = {_written(default)}"
    line = Text.assemble(f"{value}  ", (field.option.help, "dim"))
    console.print(Padding(line, (0, 0, 0, 4), expand=False))


def say(console: Console, text: str) -> None:
    """A line of explanation."""
    console.print(text, style="dim", highlight=False, markup=False)


def _written(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return str(list(value)) if isinstance(value, tuple) else str(value)
