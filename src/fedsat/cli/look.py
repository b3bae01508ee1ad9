"""`fedsat look`, which is also `fedsat data show`."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from fedsat import data
from fedsat.cli.columns import clients_table, columns_table, write_schema
from fedsat.cli.options import PARTITION_OPTIONS, read_names, read_settings
from fedsat.cli.sections import flag
from fedsat.experiment.config import Config
from fedsat.experiment.defaults import brought_by_dataset
from fedsat.experiment.settings import override
from fedsat.options import options_of
from fedsat.report.look import Look

MEANING = {name: field.option.help for name, field in options_of(Config).items()}


def look(
    dataset: Annotated[
        str, typer.Argument(help="name of a dataset, or a table or folder of your own data", show_default=False)
    ],
    partition: Annotated[
        str | None,
        typer.Option(
            help="how samples are split among clients [default: lsmc, or natural with --client]",
            metavar="NAME",
            show_default=False,
        ),
    ] = None,
    classes_per_client: Annotated[
        int | None, typer.Option(help=PARTITION_OPTIONS["classes_per_client"][1], metavar="N", show_default=False)
    ] = None,
    beta: Annotated[
        float | None, typer.Option(help=PARTITION_OPTIONS["beta"][1], metavar="NUMBER", show_default=False)
    ] = None,
    clients: Annotated[
        int | None,
        typer.Option(help="number of clients [default: 100, or those of --client]", metavar="N", show_default=False),
    ] = None,
    per_round: Annotated[
        int | None,
        typer.Option(help="clients sampled in a round [default: 15, or all]", metavar="N", show_default=False),
    ] = None,
    seed: Annotated[int, typer.Option(help="seed of the partition", metavar="N")] = 0,
    image_size: Annotated[int | None, typer.Option(help=MEANING["image_size"], metavar="N", show_default=False)] = None,
    imbalance: Annotated[
        float | None, typer.Option(help=MEANING["imbalance"], metavar="NUMBER", show_default=False)
    ] = None,
    label: Annotated[str | None, typer.Option(help=MEANING["label"], metavar="NAME", show_default=False)] = None,
    client: Annotated[str | None, typer.Option(help=MEANING["client"], metavar="NAME", show_default=False)] = None,
    test_column: Annotated[
        str | None, typer.Option(help=MEANING["test_column"], metavar="NAME", show_default=False)
    ] = None,
    drop: Annotated[str | None, typer.Option(help=MEANING["drop"], metavar="NAMES", show_default=False)] = None,
    hashed: Annotated[str | None, typer.Option(help=MEANING["hashed"], metavar="NAMES", show_default=False)] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="any other setting, such as skew=0.2; can be repeated",
            show_default=False,
        ),
    ] = None,
    schema: Annotated[
        Path | None, typer.Option(help="file for the schema of a table, which nodes agree on", show_default=False)
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="file for the figure [default: DATASET-PARTITION.png]", show_default=False)
    ] = None,
) -> None:
    """Look at the data before training: who holds what, how skewed it is, and what that suggests.

    Also draws the classes of each client as a figure, and lists the columns of a table.
    """
    given: dict[str, Any] = {
        "dataset": dataset, "partition": partition, "clients": clients, "per_round": per_round, "seed": seed,
        "image_size": image_size, "imbalance": imbalance,
        "partition.classes_per_client": classes_per_client, "partition.beta": beta, "label": label, "client": client,
        "test_column": test_column, "drop": read_names(drop) or None, "hashed": read_names(hashed) or None,
    }  # fmt: skip
    chosen, others = {key: value for key, value in given.items() if value is not None}, read_settings(set_ or [])
    config = Config.of(_complete(chosen | dict(others)))
    loaded, console = config.load_dataset(), Console()
    found = Look.at(config, loaded)
    if loaded.note:
        console.print(f"note: {loaded.note}", markup=False, highlight=False)
    if loaded.schema is not None:
        console.print(columns_table(loaded, loaded.schema))
        console.print(clients_table(found.division.counts, loaded))
        write_schema(loaded.schema, schema)
    found.show(console)
    split = str(config.table()["partition"]["name"])
    console.print(f"{split}: {data.partitions.entry(split).summary}", style="dim", markup=False, highlight=False)
    figure = found.draw(out or Path(f"{Path(loaded.name).name.partition('.')[0] or 'data'}-{split}.png"))
    console.print(f"figure: {figure}", markup=False, highlight=False)
    command = _command([*chosen.items()], set_ or [], found)
    console.print(f"to compare: {command}", markup=False, highlight=False, soft_wrap=True)


def _complete(given: dict[str, Any]) -> dict[str, Any]:
    """Return the table of settings; all clients are sampled if there are fewer than by default."""
    settings = {**brought_by_dataset(given), **given}
    settings.setdefault("per_round", min(Config.per_round, settings.get("clients", Config.clients)))
    return override({}, settings.items())


def _command(given: Iterable[tuple[str, Any]], sets: Iterable[str], found: Look) -> str:
    """Return the command that compares the suggested methods on these data."""
    settings = dict(given) | {key: value for each in found.suggestions for key, value in each.settings}
    words = ["fedsat", "compare"]
    for key, value in settings.items():
        if key != "seed" or value:
            text = ",".join(value) if isinstance(value, list) else str(value)
            words += [flag(key.rpartition(".")[2]), text]
    return shlex.join([*words, *(word for text in sets for word in ("--set", text))])
