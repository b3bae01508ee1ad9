"""`fedsat status`: what a federation of real nodes is doing."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from fedsat.errors import UsageError
from fedsat.experiment.folder import ON_NODES, SUMMARY, read_summary
from fedsat.experiment.store import StoredRun
from fedsat.flower.presence import Sighting, Status
from fedsat.report.progress import say

RUNS = Path("runs")
"""Where runs are by default."""


def status(
    folder: Annotated[
        Path | None,
        typer.Argument(metavar="RUN", help="folder of the run [default: all in runs, a line each]", show_default=False),
    ] = None,
) -> None:
    """Show what the nodes of a run are doing: here, working, silent or gone, and since when.

    The server writes this into the folder of the run.
    """
    console = Console()
    if folder is None:
        _show_all(console)
        return
    found = Status.read(folder)
    if found is None:
        known = (folder / ON_NODES).is_file()
        raise UsageError(
            f"{folder} has no status; {'its server has not begun' if known else 'it does not train on real nodes'}"
        )
    say(console, _headline(folder, found))
    table = Table(box=box.SIMPLE_HEAD, show_edge=False)
    for name in ("client", "node", "state"):
        table.add_column(name)
    for client in range(_clients(folder, found)):
        seen = found.clients.get(client)
        table.add_row(f"{client}", "" if seen is None else f"{seen.node}", _described(seen))
    console.print(table)


def _show_all(console: Console) -> None:
    """Print one line for each run on real nodes."""
    folders = sorted(path.parent for path in RUNS.glob(f"*/{ON_NODES}"))
    runs = [(folder, found) for folder in folders if (found := Status.read(folder)) is not None]
    if not runs:
        raise UsageError(f"no run in {RUNS} trains on real nodes; give the folder of one")
    for run, found in runs:
        say(console, _headline(run, found))


def _headline(folder: Path, found: Status) -> str:
    """Return one line about the run and its server."""
    summary = read_summary(folder) if (folder / SUMMARY).exists() else {}
    if summary and not found.running:
        return f"{folder}: {summary['status']} after {summary['rounds']} rounds"
    at = f"{folder}: round {found.round}, {found.stage}" if found.round else f"{folder}: {found.stage}"
    written = f"{_duration(found.time)} ago"
    if found.running is None:
        return f"{at}; the server wrote this {written}"
    if found.running:
        return f"{at}; the server is running and wrote this {written}"
    return f"{at}; the server is not running; it wrote this {written}"


def _clients(folder: Path, found: Status) -> int:
    """Return the number of clients, which no file has before the first nodes have joined."""
    try:
        return int(StoredRun.read(folder).table["clients"])
    except (UsageError, KeyError):
        return max(found.clients, default=-1) + 1


def _described(seen: Sighting | None) -> str:
    if seen is None:
        return "has not joined"
    if seen.state == "here":
        return "here"
    return f"{seen.state} for {_duration(seen.since)}" if seen.state == "working" else f"{seen.state} since {_at(seen)}"


def _at(seen: Sighting) -> str:
    return f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(seen.since))} ({_duration(seen.since)})"


def _duration(since: float) -> str:
    """Return the time since a moment, with one unit."""
    seconds = max(0, round(time.time() - since))
    for name, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length} {name}"
    return f"{seconds} s"
