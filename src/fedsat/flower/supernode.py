"""A variant of `flower-supernode` that polls 15 times as often, and waits to be let in.

    python -m fedsat.flower.supernode OPTIONS OF flower-supernode

A SuperNode asks the server for messages every 3 s, and itself for the reply of its task every 0.5 s. Flower has no
setting for this. This process therefore shortens the pauses of the SuperNode's loop, to 0.2 and 0.03 s. Other pauses,
such as those before it tries to connect again, are unchanged.
"""

from __future__ import annotations

import importlib.metadata
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedsat.flower.processes import free_port
from fedsat.flower.project import toml_lines

FASTER = 15
"""How much shorter the pauses are."""

pause = time.sleep


def command(address: str, config: Mapping[str, Any], key: Path | None, authority: Path | None) -> list[str]:
    """Return the command of a node that connects to this address; without an authority, it does so in plain text."""
    parts = ["python", "-m", "fedsat.flower.supernode", "--superlink", address, "--port", f"{free_port()}"]
    parts += ["--insecure"] if authority is None else ["--root-certificates", str(authority)]
    if key is not None:
        parts += ["--auth-supernode-private-key", str(key)]
    return [*parts, "--node-config", " ".join(toml_lines(config, equals="="))]


def sleep(seconds: float) -> None:
    """Sleep for less time if the SuperNode's loop asks for it."""
    caller = sys._getframe(1).f_globals.get("__name__", "")
    pause(seconds / FASTER if caller.startswith("flwr.supernode.") else seconds)


def main() -> None:
    """Run `flower-supernode`."""
    from fedsat.flower.admission import wait_until_admitted  # noqa: PLC0415 (`command` works without Flower)
    from fedsat.flower.pulls import ask_again_soon  # noqa: PLC0415

    wait_until_admitted()
    ask_again_soon()
    time.sleep = sleep  # type: ignore[assignment]
    (supernode,) = importlib.metadata.entry_points(group="console_scripts", name="flower-supernode")
    sys.argv[0] = "flower-supernode"
    supernode.load()()


if __name__ == "__main__":
    main()
