"""`fedsat federate`: the same run on real nodes, here as processes of this machine."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from fedsat import data
from fedsat.cli.batch import say
from fedsat.cli.options import configured
from fedsat.cli.screen import Watcher
from fedsat.cli.training import Out, folder_name
from fedsat.errors import FedsatError, UsageError
from fedsat.experiment.config import Config, override
from fedsat.experiment.folder import CONFIG, RECORDS, SUMMARY, free_folder, read_records, read_summary
from fedsat.experiment.store import StoredRun
from fedsat.flower import require_flower
from fedsat.flower.processes import LocalFederation
from fedsat.flower.terms import Terms
from fedsat.metrics import RoundRecord
from fedsat.report.tables import run_table

LOGS = "flower-logs"
"""Where a run's folder keeps what Flower's processes printed."""

PAUSE = 0.2
"""Seconds between looks at what the server has recorded."""


ELSEWHERE = ("clients", "engine", "checkpoint_every", "class_names", "dropout", "stragglers", "attackers", "attack")
"""Settings that mean nothing here: what `--nodes` and the data say, and what only a simulation has."""


@configured(without=ELSEWHERE, also=Terms)
def federate(
    table: dict[str, Any],
    terms_given: dict[str, Any],
    nodes: Annotated[int, typer.Option(help="SuperNodes to start, each a client with its part of the data", min=1)] = 4,
    out: Out = None,
) -> None:
    """Train on real nodes with Flower: a SuperLink and SuperNodes, started here for a try-out.

    Each node loads its own part of the dataset; the server sees updates and statistics only.
    """
    require_flower()
    console = Console()
    called = min(table["per_round"], nodes)
    config = Config.of(override(table, [("clients", nodes), ("per_round", called)]))
    dataset = data.load(config.dataset, image_size=config.image_size, seed=config.seed)
    data.Federation.build(dataset, config.partition, nodes, config.seed)  # a split that cannot be is better told now
    terms = Terms(**terms_given, class_names=",".join(dataset.class_names))
    folder = out or free_folder(Path("runs"), folder_name(config, f"flower-{config.method}-seed{config.seed}"))
    if (folder / CONFIG).exists():
        raise UsageError(f"{folder} already holds a run; give another --out, or move it away")
    say(console, f"starting a SuperLink and {nodes} SuperNodes; {called} clients a round")
    with tempfile.TemporaryDirectory(prefix="fedsat-") as work:
        federation = LocalFederation(Path(work), threads=max(1, (os.cpu_count() or 1) // nodes))
        try:
            with federation, Watcher(console, config.method, 0, config.rounds) as watcher:
                start_nodes(federation, config)
                process = submit(federation, config, terms, folder)
                follow(process, folder, lambda record: _show(console, watcher, record, dataset.class_names))
        except KeyboardInterrupt:
            say(
                console,
                f"{len(read_records(folder)) if (folder / RECORDS).exists() else 0} rounds are kept in {folder}",
            )
            raise
        finally:
            _keep_logs(Path(work) / "logs", folder)
        _complain(folder, federation.log("run"))
    console.print(run_table(StoredRun.read(folder)))
    say(console, f"files: {folder}")


def start_nodes(federation: LocalFederation, config: Config) -> None:
    """Start a node for each client, with its part of the dataset."""
    dataset = config.dataset if config.dataset in data.DATASETS else str(Path(config.dataset).expanduser().resolve())
    for client in range(config.clients):
        share = {"dataset": dataset, "partition-id": client, "num-partitions": config.clients}
        federation.start_node(f"node-{client}", share)


def submit(federation: LocalFederation, config: Config, terms: Terms, folder: Path) -> subprocess.Popen[bytes]:
    """Hand a run to the nodes; the process lasts as long as the run."""
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
    for remark in record.left_out:
        who = "" if remark["client"] is None else f"client {remark['client']}: "
        say(console, f"round {record.round}, {remark['stage']}: {who}{remark['why']}")
    watcher.show(record, names)


def _keep_logs(logs: Path, folder: Path) -> None:
    if logs.is_dir():
        shutil.copytree(logs, folder / LOGS, dirs_exist_ok=True)


def _complain(folder: Path, log: str) -> None:
    """An error if the run did not end well."""
    summary = read_summary(folder) if folder.is_dir() else {}
    if summary.get("status") == "completed":
        return
    if "error" in summary:
        raise FedsatError(f"{summary['error']}; {summary['rounds']} rounds are kept in {folder}")
    told = [line.partition("fedsat: ")[2] for line in log.splitlines() if "fedsat: " in line]
    last = told[-1:] or [line.strip() for line in log.splitlines() if line.strip()][-3:]
    raise FedsatError(f"the run did not begin: {' '.join(last) or 'Flower said nothing'}")
