"""Seconds of an exchange between the server and its nodes with next to nothing to compute, for three kinds of nodes.

    python benchmarks/exchange.py [--nodes 1] [--rounds 10]

A round of FedAvg without evaluation is one exchange: the server sends the model, the nodes train on a few samples, and
send it back. All processes are on this machine, with TLS and node keys. The nodes of `fedsat federate` share a process
that has loaded torch; those of `fedsat supernode` have one each, as on machines of their own; plain SuperNodes start
Python for every message.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median

import numpy as np

import fedsat
from fedsat.experiment.config import Config
from fedsat.experiment.folder import read_records
from fedsat.flower.agreement import Agreement
from fedsat.flower.credentials import make_credentials
from fedsat.flower.federation import LocalFederation, Tls
from fedsat.flower.local_run import submit
from fedsat.flower.processes import QUIET, beside_python
from fedsat.flower.project import toml_lines
from fedsat.flower.terms import Terms

SAMPLES, CLASSES = 64, 4

Start = Callable[[LocalFederation, Path, int, dict[str, object]], list[str]]
"""Returns the command of a node, for a folder with its key, its number, and its configuration."""


def main() -> None:
    """Measure the three kinds of nodes one after the other."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=10)
    given = parser.parse_args()
    print(f"{given.nodes} nodes, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    with tempfile.TemporaryDirectory(prefix="fedsat-") as work:
        data = write_samples(Path(work) / "data")
        config = fedsat.configure(
            dataset=str(data), partition="iid", clients=given.nodes, per_round=given.nodes, workers=1, model="mlp",
            algorithm="fedavg", rounds=given.rounds + 1, epochs=1, evaluate_every=given.rounds + 1, lr=0.01,
        )  # fmt: skip
        for name, start in {"flower-supernode": plain, "fedsat supernode": own, "fedsat federate": None}.items():
            seconds = measure(Path(work) / name.replace(" ", "-"), config, start)
            print(f"{name}: median {median(seconds):.2f} s, {min(seconds):.2f} to {max(seconds):.2f} s", flush=True)


def measure(work: Path, config: Config, start: Start | None) -> list[float]:
    """Return the seconds of all exchanges but the first; without `start`, the nodes are those of `fedsat federate`."""
    make_credentials(work, config.clients)
    agreement = work / "agreement.toml"
    agreement.write_text(Agreement.covering(config).to_toml())
    shared = {"dataset": config.dataset_name, "num-partitions": config.clients, "agreement": str(agreement)}
    federation = LocalFederation(work / "server-files", tls=Tls.of(work / "server"), keys=work / "server")
    with federation, ExitStack() as stack:
        for client in range(config.clients):
            share, key = {**shared, "partition-id": client}, work / f"node-{client}" / "node"
            if start is None:
                federation.start_node(f"node-{client}", share, key=key)
            else:
                stack.enter_context(running(start(federation, key.parent, client, share), key.parent))
        submit(federation, config, Terms(wait=300.0), work / "run").wait()
    return [sum(record.seconds.values()) for record in read_records(work / "run")[1:-1]]


def plain(federation: LocalFederation, folder: Path, client: int, share: dict[str, object]) -> list[str]:
    """Return the command of Flower's own SuperNode."""
    return [
        str(beside_python("flower-supernode")), "--superlink", f"127.0.0.1:{federation.door[1]}", "--port",
        f"{federation.door[1] + 1 + client}", "--root-certificates", str(folder / "ca.crt"),
        "--auth-supernode-private-key", str(folder / "node"), "--node-config", " ".join(toml_lines(share, equals="=")),
    ]  # fmt: skip


def own(federation: LocalFederation, folder: Path, client: int, share: dict[str, object]) -> list[str]:
    """Return the command of `fedsat supernode`."""
    return [
        sys.executable, "-m", "fedsat", "supernode", f"127.0.0.1:{federation.door[1]}", "--authority",
        str(folder / "ca.crt"), "--key", str(folder / "node"), "--dataset", str(share["dataset"]), "--client",
        f"{client}", "--clients", str(share["num-partitions"]), "--agreement", str(share["agreement"]),
    ]  # fmt: skip


@contextmanager
def running(command: list[str], home: Path) -> Iterator[None]:
    """Run a command, and terminate it at the end."""
    paths = os.pathsep.join([str(beside_python("")), os.environ.get("PATH", "")])
    with (home / "log").open("wb") as log:
        environment = {**os.environ, **QUIET, "FLWR_HOME": str(home), "PATH": paths}
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)
    try:
        yield
    finally:
        process.terminate()
        process.wait(60)


def write_samples(folder: Path) -> Path:
    """Write a dataset of a few small images."""
    folder.mkdir()
    draw = np.random.default_rng(0)
    for prefix in ("", "test_"):
        np.save(folder / f"{prefix}images.npy", draw.integers(0, 256, (SAMPLES, 1, 8, 8), dtype=np.uint8))
        np.save(folder / f"{prefix}labels.npy", np.arange(SAMPLES) % CLASSES)
    return folder


if __name__ == "__main__":
    main()
