"""`fedsat list`: everything that can be chosen by name, with options, defaults and meanings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from fedsat.algorithms import Algorithm, aggregators, algorithms, footprint, objectives, optimizers, weightings
from fedsat.cli.data import datasets_table
from fedsat.data import partitions
from fedsat.entry_points import offers, package_of
from fedsat.errors import UsageError, unknown
from fedsat.metrics import FORMS, MEASURES, METRICS
from fedsat.models import FROM_DATA, models
from fedsat.options import OptionField, options_of
from fedsat.registry import Registry
from fedsat.rounds import attacks, lr_schedules, privacies

KINDS: dict[str, Registry[Any]] = {
    "methods": algorithms,
    "objectives": objectives,
    "weightings": weightings,
    "aggregators": aggregators,
    "optimizers": optimizers,
    "schedules": lr_schedules,
    "attacks": attacks,
    "privacy": privacies,
    "models": models,
    "partitions": partitions,
}

USES = {
    "methods": "Use --algorithm NAME, or compare --methods NAME,NAME, and --set for options.",
    "objectives": "The loss of a sample. Use --with NAME or --set objective=NAME.",
    "weightings": "The weight of a client in the mean. Use --with NAME or --set weighting=NAME.",
    "aggregators": "How the updates of a round are combined. Use --with NAME or --set aggregator=NAME.",
    "optimizers": "How clients take their steps. Use --momentum and similar options, or --optimizer NAME and --set.",
    "schedules": "The learning rate over the rounds. Use --lr-schedule NAME, and --set for options.",
    "attacks": "What malicious clients do. Use --attack NAME with --attackers SHARE, and --set for options.",
    "privacy": "Differential privacy of clients. Use --privacy NAME with --dp-clip, --dp-noise and --budget.",
    "models": "The network that is trained. Use --model NAME, and --set for options.",
    "partitions": "How samples are split among clients. Use --partition NAME, and --set for options.",
}
"""What each kind is, and how to choose one."""

OWN = "NAME can also be a class of your own, written module:Name."

METRICS_NOTE = (
    "The first table is recorded in every evaluated round. Choose more with --metrics, such as auroc,worst_class_f1: "
    "a measure, optionally with the prefix of a form. Add your own functions as module:name."
)

LISTS = ("datasets", *KINDS, "metrics")
"""What can be listed."""


def show(
    what: Annotated[str | None, typer.Argument(help=", ".join(LISTS), show_default=False)] = None,
) -> None:
    """List everything that can be chosen by name, with options, defaults and meanings.

    Without an argument, list all kinds.
    """
    console = Console()
    if what is None:
        for name in LISTS:
            console.rule(name, align="left")
            show(name)
    elif what == "datasets":
        console.print(datasets_table())
    elif what == "metrics":
        for table in (metrics_table(), measures_table(), forms_table()):
            console.print(table)
        print_note(console, METRICS_NOTE)
    elif what in ("methods", "algorithms"):
        print_parts(console, algorithms, shared=options_of(Algorithm))
        console.print(footprints_table())
        print_note(console, f"{USES['methods']} {OWN}")
    elif what in KINDS:
        print_parts(console, KINDS[what])
        print_note(console, f"{USES[what]} {OWN}")
    else:
        raise unknown("list", what, LISTS)


def metrics_table() -> Table:
    """Return a table of the metrics that every run records, and of those of other packages."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for heading in ("metric", "description"):
        table.add_column(heading)
    for metric in METRICS.values():
        table.add_row(metric.name, metric.caption)
    for name, point in offers("metrics").items():
        table.add_row(name, f"from the package {package_of(point)}; choose it with --metrics {name}")
    return table


def measures_table() -> Table:
    """Return a table of the measures, from which further metrics are made."""
    table = Table(title="measures", box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for heading in ("measure", "of each class", "definition"):
        table.add_column(heading)
    for each in MEASURES:
        text = (each.compute.__doc__ or "").strip().partition("\n")[0]
        table.add_row(each.name, "yes" if each.of_classes else "", text)
    return table


def forms_table() -> Table:
    """Return a table of the forms of a measure, by the prefix of its name."""
    table = Table(title="forms", box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for heading in ("name", "definition"):
        table.add_column(heading)
    for prefix, text in FORMS.items():
        table.add_row(f"{prefix}MEASURE", text)
    return table


def footprints_table() -> Table:
    """Return a table of what each method stores between rounds, what it sends in a round, and its weighting."""
    table = Table(title="state and traffic of the methods", box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for heading in ("", "client stores", "server stores", "down", "up", "weighting"):
        table.add_column(heading, no_wrap=True)
    for name in algorithms:
        try:
            method = algorithms.build(name)
            sizes = footprint(method)
        except Exception:  # whatever a package's code raises; `print_parts` says why it cannot be loaded
            if name in algorithms.offers:
                continue
            raise
        workers = " + w−1" if method.weighting.needs_counts else ""
        table.add_row(
            name,
            ", ".join(sizes.client) or "–",
            ", ".join(sizes.server) or "–",
            f"{sizes.down}{workers}",
            str(sizes.up),
            weightings.name_of(method.weighting),
        )
    table.caption = (
        "Everything stored is as large as the model. down, up: models sent to and from each sampled client in a round. "
        "w: the number of workers, clients that evaluate the model of another client (--workers); w−1 of them download "
        "it, since a client is one of its own workers."
    )
    table.caption_justify = "left"
    return table


def print_parts(console: Console, registry: Registry[Any], shared: Mapping[str, OptionField] | None = None) -> None:
    """Print the parts of one kind with their options. Shared options come first, and again where defaults differ."""
    shared = shared or {}
    if shared:
        console.print("[bold]all methods[/bold]", highlight=False)
        print_options(console, shared.values())
    for name in registry:
        try:
            entry = registry.entry(name)
        except UsageError as error:  # a package that cannot be imported must not hide the other parts
            print_title(console, name, str(error))
            continue
        package = f" (package {package_of(registry.offers[name])})" if name in registry.offers else ""
        print_title(console, name, entry.summary + package)
        own = (
            field
            for key, field in registry.options(name).items()
            if key not in FROM_DATA and field != shared.get(key) and (not entry.preset or key in entry.preset)
        )
        print_options(console, own)


def print_title(console: Console, name: str, summary: str) -> None:
    """Print the name of a part and what it is."""
    title = Table.grid(padding=(0, 2))
    title.add_row(Text(name, "bold"), Text(summary))
    console.print(title, highlight=False)


def print_options(console: Console, fields: Iterable[OptionField]) -> None:
    """Print options with their defaults and meanings."""
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    for field in fields:
        default = field.default
        if field.option.among is not None:
            default = field.option.among.name_of(default)
        value = f"{field.name} (required)" if field.required else f"{field.name} = {_written(default)}"
        table.add_row(value, Text(field.option.help, "dim"))
    if table.row_count:
        console.print(Padding(table, (0, 0, 0, 4), expand=False))


def print_note(console: Console, text: str) -> None:
    """Print a line of explanation."""
    console.print(text, style="dim", highlight=False, markup=False)


def _written(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return str(list(value)) if isinstance(value, tuple) else str(value)
