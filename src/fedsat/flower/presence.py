"""Which nodes are here, and what they are doing: `status.json` in the folder of a run, which `fedsat status` shows.

The server writes it whenever something changes, and every second while it waits for nodes.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from fedsat.errors import UsageError

log = logging.getLogger("flwr")

STATUS = "status.json"

State = Literal["here", "working", "silent", "gone"]
"""here: it is connected and has nothing to do. working: it has a request. silent: its last request had no reply, or
none in time. gone: it is no longer connected."""


@dataclass(frozen=True)
class Sighting:
    """What is known about a client's node, and since when (seconds since 1970)."""

    state: State
    since: float
    node: int


@dataclass
class Presence:
    """The server's account of the nodes, in a file of the run's folder once that exists."""

    folder: Path | None = None
    stage: str = "waiting for nodes"
    round: int = 0
    clients: dict[int, Sighting] = field(default_factory=dict)
    _failed: bool = False
    """Whether the last attempt to write the file failed, which is told once."""

    def see(self, client: int, state: State, node: int) -> None:
        """Note the state of a client's node, and since when it is so."""
        known = self.clients.get(client)
        if known is None or (known.state, known.node) != (state, node):
            self.clients[client] = Sighting(state, time.time(), node)

    def write(self) -> None:
        """Write the file. It describes the current moment, so it need not survive a power failure.

        It only informs, so a run does not end because it cannot be written, for example on a full disk.
        """
        if self.folder is None or not self.folder.is_dir():
            return
        content = {
            "server": {"pid": os.getpid(), "host": socket.gethostname(), "time": time.time()},
            "round": self.round,
            "stage": self.stage,
            "clients": {str(client): asdict(seen) for client, seen in sorted(self.clients.items())},
        }
        partial = self.folder / f"{STATUS}.part"
        try:
            partial.write_text(json.dumps(content), encoding="utf-8")
            partial.replace(self.folder / STATUS)
        except OSError as error:
            if not self._failed:
                log.warning("%s cannot be written: %s", self.folder / STATUS, error.strerror or error)
            self._failed = True
        else:
            self._failed = False


@dataclass(frozen=True)
class Status:
    """What a server last wrote about its nodes."""

    time: float
    round: int
    stage: str
    clients: Mapping[int, Sighting]
    _server: Mapping[str, Any]

    @staticmethod
    def read(folder: Path) -> Status | None:
        """Read the status of a run; None if its server has written none."""
        try:
            found = json.loads((folder / STATUS).read_bytes())
            clients = {int(client): Sighting(**seen) for client, seen in found["clients"].items()}
            return Status(found["server"]["time"], found["round"], found["stage"], clients, found["server"])
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UsageError(f"{folder / STATUS} cannot be read: {error}") from error

    @property
    def running(self) -> bool | None:
        """Whether the server's process exists; None on another machine than the server's."""
        if self._server["host"] != socket.gethostname():
            return None
        try:
            os.kill(self._server["pid"], 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            return True
        return True
