"""How often the server has sent the requests of a round, in the `nodes.json` of a private run.

A node may have replied before the server was killed. So an attempt is counted on disk before its requests are sent, and
the privacy ledger misses none, however often the server is started again.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from fedsat.experiment.checkpoint import KEPT
from fedsat.experiment.folder import ON_NODES, read_nodes, speaking_of, write_whole

NAME = "attempts"
"""The entry of `nodes.json`."""


@dataclass(frozen=True)
class Attempts:
    """The attempts at the last rounds, in the folder of a run; without a folder, none are counted."""

    folder: Path | None = None

    def of(self, round_number: int) -> int:
        """Return how often the requests of a round may have been sent."""
        if self.folder is None:
            return 0
        return int(read_nodes(self.folder).get(NAME, {}).get(f"{round_number}", 0))

    def write(self, round_number: int, count: int) -> None:
        """Replace the number of attempts at a round. Rounds that no checkpoint can repeat are forgotten."""
        if self.folder is None:
            return
        nodes = read_nodes(self.folder)
        known = {number: one for number, one in nodes.get(NAME, {}).items() if int(number) > round_number - KEPT}
        content = {**nodes, NAME: {**known, f"{round_number}": count}}
        with speaking_of(self.folder):
            write_whole(self.folder / ON_NODES, json.dumps(content, indent=2).encode())
