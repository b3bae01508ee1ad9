"""`fedsat keys`: the certificates and keys of a federation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedsat.experiment.folder import speaking_of
from fedsat.flower import require_flower
from fedsat.report.progress import say


def keys(
    folder: Annotated[Path, typer.Argument(help="Folder for the keys; each machine gets a subfolder.", metavar="KEYS")],
    host: Annotated[
        str, typer.Option(help="names or addresses by which nodes reach the server", metavar="NAME,…")
    ] = "localhost",
    nodes: Annotated[
        int, typer.Option(help="also create the keys of this number of nodes, to try it out", min=0, metavar="N")
    ] = 0,
    days: Annotated[int, typer.Option(help="how long the certificates are valid", min=1, metavar="N")] = 365,
) -> None:
    """Create the certificates and keys of a federation: a folder for the server, and one for each node.

    Copy each folder to its machine, and nowhere else. In production, each node creates its own key (ssh-keygen -t ecdsa
    -b 384 -N "" -f node) and sends only the public half.
    """
    require_flower()
    from fedsat.flower.credentials import make_credentials  # noqa: PLC0415 (needs the extra)

    with speaking_of(folder):
        make_credentials(folder, nodes, host.split(","), days)
    say(Console(), f"{folder / 'server'}: for the server; put the public key of each node (NAME.pub) there")
    if nodes:
        say(Console(), f"{folder / 'node-0'}, …: for the nodes, with a private key each")
