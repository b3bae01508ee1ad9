"""`fedsat federate`: train on real nodes, which are started as processes on this machine."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console

from fedsat import data
from fedsat.cli.options import Out, configured
from fedsat.cli.sections import NODES
from fedsat.cli.training import show_run
from fedsat.data.catalog import has_name
from fedsat.engine.capacity import free_memory
from fedsat.errors import FedsatError, UsageError
from fedsat.experiment.config import Config
from fedsat.experiment.defaults import Given
from fedsat.experiment.folder import (
    CONFIG,
    RECORDS,
    SCHEMA,
    SUMMARY,
    free_folder,
    read_records,
    read_summary,
    speaking_of,
)
from fedsat.experiment.interrupt import STOPPED, signals_raise
from fedsat.experiment.jobs import folder_name
from fedsat.experiment.settings import override
from fedsat.experiment.store import StoredRun
from fedsat.flower import require_flower
from fedsat.flower.agreement import Agreement
from fedsat.flower.federation import LocalFederation
from fedsat.flower.processes import NODE_BYTES
from fedsat.flower.terms import Terms
from fedsat.metrics import RoundRecord
from fedsat.report.progress import Watcher, say

LOGS = "flower-logs"
"""Subfolder of a run for the output of Flower's processes."""

PAUSE = 0.2
"""Seconds between two reads of the server's records."""

ELSEWHERE = (
    "clients",
    "engine",
    "checkpoint_every",
    "state_memory",
    "class_names",
    "dropout",
    "stragglers",
    "attackers",
    "attack",
    "schema",
)
"""Settings that `federate` does not have: `--nodes` or the data determine them, or only simulations use them."""


@configured(without=ELSEWHERE, also=Terms)
def federate(
    given: Given,
    terms_given: dict[str, Any],
    nodes: Annotated[
        int,
        typer.Option(
            help="SuperNodes to start; each is a client with its part of the data",
            min=1,
            metavar="N",
            rich_help_panel=NODES,
        ),
    ] = 4,
    out: Out = None,
) -> None:
    """Train on real nodes with Flower. A SuperLink and SuperNodes are started on this machine, to try it out.

    Each node loads its own part of the dataset. The server sees only updates and statistics.
    """
    require_flower()
    _check_memory(nodes)
    console, table = Console(), given.table
    if table["partition"]["name"] == "natural" and table["clients"] != nodes:
        raise UsageError(
            f"{table['dataset']} is divided among {table['clients']} clients; use --nodes {table['clients']}"
        )
    sampled = min(table["per_round"], nodes)
    config = Config.of(override(table, [("clients", nodes), ("per_round", sampled)]))
    dataset = config.load_dataset()
    data.Federation.build(
        dataset, config.partition, nodes, config.seed
    )  # report an impossible split before nodes start
    folder = out or free_folder(Path("runs"), folder_name(config, f"flower-{config.method}-seed{config.seed}"))
    if (folder / CONFIG).exists():
        raise UsageError(f"{folder} already contains a run; choose another folder with --out")
    with speaking_of(folder):
        (folder / LOGS).mkdir(parents=True, exist_ok=True)
    say(console, f"starting a SuperLink and {nodes} SuperNodes; {sampled} clients per round")
    with signals_raise(), tempfile.TemporaryDirectory(prefix="fedsat-") as work:
        terms = Terms(**terms_given, **_agreed(dataset, Path(work)))
        threads = max(1, (os.cpu_count() or 1) // nodes)
        federation = LocalFederation(Path(work), threads=threads, logs=folder / LOGS)
        try:
            with federation, Watcher(console, config.method, 0, config.rounds) as watcher:
                start_nodes(federation, config)
                process = submit(federation, config, terms, folder)
                follow(process, folder, lambda record: _show(console, watcher, record, dataset.class_names))
        except STOPPED:
            rounds = len(read_records(folder)) if (folder / RECORDS).exists() else 0
            with suppress(OSError):  # after SIGHUP, the terminal is gone
                say(console, f"{rounds} rounds are saved in {folder}")
            raise
        _check_completed(folder, federation.log("run"))
    show_run(console, StoredRun.read(folder))
    say(console, f"files: {folder}")


def _check_memory(nodes: int) -> None:
    """Refuse more nodes than this machine has memory for; every node is several processes."""
    needed, free = nodes * NODE_BYTES, free_memory(torch.device("cpu"))
    if needed > free:
        raise UsageError(
            f"{nodes} nodes need {needed / 1e9:.1f} GB of memory, but only {free / 1e9:.1f} GB is free; "
            f"use fewer --nodes, or simulate them: fedsat run --clients {nodes}"
        )


def _agreed(dataset: data.Dataset, work: Path) -> dict[str, Any]:
    """Return what a server without data needs to know about them: the schema of a table, or the class names."""
    if dataset.schema is None:
        return {"class_names": ",".join(dataset.class_names)}
    file = work / SCHEMA
    file.write_text(dataset.schema.to_json(), encoding="utf-8")
    return {"schema": str(file)}


def start_nodes(federation: LocalFederation, config: Config) -> None:
    """Start one node per client, with its part of the dataset and an agreement that accepts this run."""
    dataset = _for_nodes(config.dataset_name)
    agreement = federation.folder / "agreement.toml"
    agreement.write_text(Agreement.covering(config).to_toml(), encoding="utf-8")
    for client in range(config.clients):
        share = {"dataset": dataset, "partition-id": client, "num-partitions": config.clients}
        share["agreement"] = str(agreement)
        federation.start_node(f"node-{client}", share)


def _for_nodes(dataset: str) -> str:
    """Return the dataset's name, or its absolute path, because nodes run in folders of their own."""
    if has_name(dataset) or not Path(dataset).expanduser().exists():
        return dataset
    return str(Path(dataset).expanduser().resolve())


def submit(federation: LocalFederation, config: Config, terms: Terms, folder: Path) -> subprocess.Popen[bytes]:
    """Submit a run to the nodes. The process ends with the run."""
    file = federation.folder / CONFIG
    file.write_text(config.to_toml(), encoding="utf-8")
    return federation.submit({"config": str(file), "out": str(folder.resolve()), **vars(terms)})


def follow(process: subprocess.Popen[bytes], folder: Path, on_round: Any) -> None:
    """Call `on_round` with each round's record as the server writes it, until the run ends."""
    shown, running = 0, True
    while running:
        running = process.poll() is None and not (folder / SUMMARY).exists()
        records = read_records(folder) if (folder / RECORDS).exists() else []
        for record in records[shown:]:
            on_round(record)
        shown = len(records)
        time.sleep(PAUSE if running else 0)


def _show(console: Console, watcher: Watcher, record: RoundRecord, names: tuple[str, ...]) -> None:
    for note in record.left_out:
        who = "" if note["client"] is None else f"client {note['client']}: "
        say(console, f"round {record.round}, {note['stage']}: {who}{note['why']}")
    watcher.show(record, names)


def _check_completed(folder: Path, log: str) -> None:
    """Raise an error if the run did not complete."""
    summary = read_summary(folder) if folder.is_dir() else {}
    if summary.get("status") == "completed":
        return
    if "error" in summary:
        raise FedsatError(f"{summary['error']}; {summary['rounds']} rounds are saved in {folder}")
    errors = [line.partition("fedsat: ")[2] for line in log.splitlines() if "fedsat: " in line]
    last = errors[-1:] or [line.strip() for line in log.splitlines() if line.strip()][-3:]
    raise FedsatError(f"the run did not start: {' '.join(last) or 'Flower printed no reason'}")
