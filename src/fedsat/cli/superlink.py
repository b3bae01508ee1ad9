"""`fedsat superlink`: the server of a federation whose nodes are on other machines."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedsat.errors import FedsatError, UsageError
from fedsat.experiment.interrupt import signals_raise
from fedsat.flower import require_flower
from fedsat.flower.federation import NAME, LocalFederation, Tls
from fedsat.flower.processes import QUIET
from fedsat.report.progress import say

PAUSE = 1.0
"""Seconds between checks of the folder of keys."""


def superlink(
    keys: Annotated[
        Path,
        typer.Argument(
            help="Folder with ca.crt, server.crt and server.key, and the public key of each node (node-0.pub, …).",
            metavar="KEYS",
        ),
    ],
    host: Annotated[str, typer.Option(help="address where nodes connect", metavar="ADDRESS")] = "0.0.0.0",
    port: Annotated[int, typer.Option(help="port where nodes connect", min=1, max=65535, metavar="PORT")] = 9092,
    control_port: Annotated[
        int, typer.Option(help="port for commands, on this machine only", min=1, max=65535, metavar="PORT")
    ] = 8000,
    state: Annotated[
        Path, typer.Option(help="folder for the SuperLink's database, and for its address", metavar="FOLDER")
    ] = Path("federation"),
) -> None:
    """Start Flower's SuperLink for nodes on other machines, behind a gate that lets in only nodes with a known key.

    Nodes reach the gate. Commands such as `flwr run` reach the SuperLink, from this machine only. A key that is added
    to the folder is accepted at once, and one that is removed is refused at once.
    """
    require_flower()
    if not keys.is_dir():
        raise UsageError(f"{keys} is not a folder; `fedsat keys` creates one (KEYS/server)")
    console, tls = Console(), Tls.of(keys)
    state.mkdir(parents=True, exist_ok=True)
    with signals_raise(), tempfile.TemporaryDirectory(prefix="fedsat-") as work:
        federation = LocalFederation(
            Path(work),
            echo=True,
            tls=tls,
            keys=keys,
            port=control_port,
            door=(host, port),
            database=state / "superlink.db",
        )
        federation.write_connection(state)
        with federation:
            say(console, f"nodes connect to {host}:{port}")
            environment = " ".join(f"{name}={value}" for name, value in {"FLWR_HOME": state.resolve(), **QUIET}.items())
            say(console, f"start a run on this machine: {environment} flwr run PROJECT {NAME} --stream")
            while not (ended := federation.ended()):
                for key in federation.register():
                    say(console, f"{key.name} is registered")
                time.sleep(PAUSE)
    raise FedsatError(f"the process {ended[0]!r} has ended; its output is above")
