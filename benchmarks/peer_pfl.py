"""FedAvg in pfl's simulation: starts one process per core (`pfl_worker.py`); the first one handles the requests.

Started by `peers.py`.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path


def addresses(count: int) -> str:
    """Return addresses for a number of processes on this machine."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    found = ",".join(f"127.0.0.1:{one.getsockname()[1]}" for one in sockets)
    for one in sockets:
        one.close()
    return found


def main() -> None:
    """Start the processes, wait for the first one, and end the others."""
    cores = os.cpu_count() or 1
    command = [sys.executable, Path(__file__).with_name("pfl_worker.py"), sys.argv[1]]
    shared = {**os.environ, "PFL_WORKER_ADDRESSES": addresses(cores)}
    first, *others = [subprocess.Popen(command, env={**shared, "PFL_WORKER_RANK": str(rank)}) for rank in range(cores)]
    try:
        sys.exit(first.wait())
    finally:
        for process in others:
            process.kill()


if __name__ == "__main__":
    main()
