"""Other simulators on the same work, each in its own process that runs a round on request.

They need the extra `bench`, in this environment or in a separate one (`make bench-peers`), which takes precedence.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from turns import MARK

from fedsat.flower.processes import QUIET

HERE = Path(__file__).parent
OWN = HERE.parent / ".venv-bench" / "bin" / "python"
PYTHON = OWN if OWN.exists() else Path(sys.executable)
PEERS = {"flower": "ray", "pfl": "pfl", "fedjax": "fedjax"}
"""Peers, and the libraries that their simulators need (Ray comes with Flower's extra `simulation`)."""


class Peer:
    """A peer in its process, ready to run rounds."""

    def __init__(self, script: str, work: Path) -> None:
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 -- closed by `close`
        self._process = subprocess.Popen(
            [PYTHON, HERE / f"peer_{script}.py", work],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env={**os.environ, "PYTHONPATH": f"{HERE}:{HERE.parent / 'src'}", "OMP_NUM_THREADS": "1", **QUIET},
        )
        self.name, self._loss = self._answer(), float("nan")

    def run_round(self) -> float:
        """Run a round and return its seconds."""
        assert self._process.stdin is not None
        self._process.stdin.write("round\n")
        self._process.stdin.flush()
        seconds, self._loss = map(float, self._answer().split())
        return seconds

    def test_loss(self) -> float:
        """Return the loss on the test set after all rounds."""
        return self._loss

    def close(self) -> None:
        """End the process."""
        self._process.communicate(timeout=60)
        self._log.close()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(MARK):
                return line.removeprefix(MARK).strip()
        self._log.seek(0)
        raise SystemExit(f"a peer ended unexpectedly:\n{self._log.read()[-3000:]}")


def installed() -> tuple[list[str], list[str]]:
    """Return the peers that are installed, and those that are not."""
    there = [name for name, library in PEERS.items() if _imports(library)]
    return there, [name for name in PEERS if name not in there]


def _imports(library: str) -> bool:
    found = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({library!r}) is None)"
    return subprocess.run([PYTHON, "-c", found], check=False).returncode == 0
