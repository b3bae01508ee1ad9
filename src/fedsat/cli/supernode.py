"""`fedsat supernode`: a node of a federation, with the data of this machine."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from fedsat.errors import FedsatError, UsageError
from fedsat.experiment.interrupt import signals_raise
from fedsat.flower import require_flower
from fedsat.flower.agreement import Agreement
from fedsat.flower.processes import Processes
from fedsat.flower.supernode import command
from fedsat.report.progress import say

PAUSE = 0.5
"""Seconds between checks of the processes."""


def supernode(
    server: Annotated[str, typer.Argument(help="Address of the server's gate.", metavar="HOST:PORT")],
    key: Annotated[Path, typer.Option(help="private key of this node; its .pub file is on the server", metavar="FILE")],
    authority: Annotated[
        Path, typer.Option(help="certificate of the authority that signed the server's (ca.crt)", metavar="FILE")
    ],
    folder: Annotated[Path | None, typer.Option(help="folder or table with this node's data", metavar="PATH")] = None,
    dataset: Annotated[
        str | None, typer.Option(help="take a part of this dataset instead, to try it out", metavar="NAME")
    ] = None,
    client: Annotated[
        int | None, typer.Option(help="number of this client, the same after a restart", min=0, metavar="N")
    ] = None,
    clients: Annotated[int | None, typer.Option(help="number of parts of the dataset", min=1, metavar="N")] = None,
    agreement: Annotated[
        Path | None, typer.Option(help="what the server may ask of this node (TOML)", metavar="FILE")
    ] = None,
    state: Annotated[
        Path | None,
        typer.Option(help="folder where the client's state is kept [default: KEY.state]", metavar="FOLDER"),
    ] = None,
    identity: Annotated[
        Path | None,
        typer.Option(help="private key that other members know (ssh-keygen -t ed25519)", metavar="FILE"),
    ] = None,
    device: Annotated[str | None, typer.Option(help="device for training: cpu, cuda, …", metavar="NAME")] = None,
) -> None:
    """Start a node that trains with the data of this machine, as its agreement allows.

    It connects to the server and needs no open port. Its state is on disk, so that it can be restarted at any time.
    Code that the server sends is ignored: the node runs the fedsat that is installed here.
    """
    require_flower()
    if (folder is None) == (dataset is None):
        raise UsageError("give the node's data with either --folder or --dataset")
    if dataset is not None and (client is None or clients is None):
        raise UsageError(f"to take a part of {dataset}, give --client and --clients as well")
    given: dict[str, Any] = {
        "folder": _absolute(folder),
        "dataset": dataset,
        "partition-id": client,
        "num-partitions": clients if dataset is not None else None,
        "agreement": _absolute(agreement),
        "identity": _absolute(identity),
        "device": device,
        "state": _absolute(state or key.with_name(f"{key.name}.state")),
    }
    config = {name: value for name, value in given.items() if value is not None}
    for file in (key, authority, identity):
        if file is not None and not file.is_file():
            raise UsageError(f"{file} does not exist")
    Agreement.of_node(config)  # an error in the file is reported now
    with (
        signals_raise(),
        tempfile.TemporaryDirectory(prefix="fedsat-") as work,
        Processes(Path(work), threads=os.cpu_count() or 1, echo=True) as processes,
    ):
        processes.start("node", command(server, config, key.absolute(), authority.absolute()))
        say(Console(), f"connecting to {server}")
        while not (ended := processes.ended()):
            time.sleep(PAUSE)
    raise FedsatError(f"the process {ended[0]!r} has ended; its output is above")


def _absolute(path: Path | None) -> str | None:
    return None if path is None else str(path.expanduser().absolute())
