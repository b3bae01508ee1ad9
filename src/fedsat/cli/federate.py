"""`fedsat federate`: train on real nodes, which are started as processes on this machine."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console

from fedsat import data
from fedsat.cli.options import Out, configured
from fedsat.cli.sections import NODES
from fedsat.cli.training import show_run
from fedsat.engine.capacity import free_memory
from fedsat.errors import FedsatError, UsageError
from fedsat.experiment.config import Config
from fedsat.experiment.defaults import Given
from fedsat.experiment.folder import CONFIG, NODE_STATES, free_folder, read_nodes, speaking_of
from fedsat.experiment.interrupt import STOPPED, signals_raise
from fedsat.experiment.jobs import folder_name
from fedsat.experiment.resume import wanted_config
from fedsat.experiment.settings import override
from fedsat.experiment.store import StoredRun
from fedsat.flower import require_flower
from fedsat.flower.federation import LocalFederation
from fedsat.flower.local_run import DERIVED, LOGS, EndedError, LocalRun, rounds_in
from fedsat.flower.processes import NODE_BYTES
from fedsat.flower.terms import Terms
from fedsat.metrics import RoundRecord
from fedsat.report.progress import Watcher, bars_on, say

ATTEMPTS = 3
"""How often all processes are started again without a new round before the run ends with an error."""

ELSEWHERE = (
    "clients",
    "engine",
    "compile",
    "checkpoint_every",
    "state_memory",
    "class_names",
    "dropout",
    "stragglers",
    "attackers",
    "attack",
    "schema",
    "replace",
)
"""Settings that `federate` does not have: `--nodes` or the data determine them, or only others use them."""


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
    only_look = terms_given.get("look", False)
    name = "look" if only_look else folder_name(config, f"flower-{config.method}-seed{config.seed}")
    folder = out or free_folder(Path("runs"), name)
    if (folder / CONFIG).exists():
        raise UsageError(f"{folder} already contains a run; choose another folder with --out")
    with speaking_of(folder):
        for subfolder in (LOGS,) if only_look else (LOGS, NODE_STATES):
            (folder / subfolder).mkdir(parents=True, exist_ok=True)
    say(console, f"starting a SuperLink and {nodes} SuperNodes; {sampled} clients per round")
    run = LocalRun(folder, config, terms_given, dataset)
    (_look if only_look else _carry_out)(console, run)


def _look(console: Console, run: LocalRun) -> None:
    """Show what the nodes report about their data; nothing is trained."""
    with signals_raise(), _federation(run) as federation:
        run.look(federation).show(console)
    say(console, f"files: {run.folder}")


def resume_on_nodes(folder: Path, rounds: int | None, minutes: float | None) -> None:
    """Continue a run of `fedsat federate` from its last checkpoint, or to more rounds or minutes."""
    require_flower()
    console, config = Console(), wanted_config(folder, rounds, minutes=minutes)
    _check_memory(config.clients)
    stored = read_nodes(folder).get("terms", {})
    terms = {name: value for name, value in stored.items() if name not in DERIVED}
    say(console, f"starting a SuperLink and {config.clients} SuperNodes again")
    _carry_out(console, LocalRun(folder, config, terms, config.load_dataset()))


def _carry_out(console: Console, run: LocalRun) -> None:
    """Carry out a run. If its server is lost, start all processes again and continue, as long as there is progress."""
    folder, config = run.folder, run.config
    begun, failures = rounds_in(folder), 0
    with signals_raise(), bars_on(console) as bars:
        watcher = Watcher(console, bars, config.method, begun, config.rounds)
        try:
            while True:
                before = rounds_in(folder)
                try:
                    _attempt(console, run, watcher)
                    break
                except EndedError as error:
                    failures = 0 if rounds_in(folder) > before else failures + 1
                    if failures == ATTEMPTS:
                        raise FedsatError(f"{error}; to continue, use fedsat resume {folder}") from error
                    say(console, f"{error}; all processes are started again")
        except STOPPED:
            with suppress(OSError):  # after SIGHUP, the terminal is gone
                say(console, f"{rounds_in(folder)} rounds are saved in {folder}")
            raise
    show_run(console, StoredRun.read(folder))
    say(console, f"files: {folder}")


def _attempt(console: Console, run: LocalRun, watcher: Watcher) -> None:
    """Start all processes, carry out the run, and end them."""
    names = run.dataset.class_names
    with _federation(run) as federation:
        run.carry_out(
            federation, lambda record: _show(console, watcher, record, names), lambda what: say(console, what)
        )


@contextmanager
def _federation(run: LocalRun) -> Iterator[LocalFederation]:
    """Start a SuperLink for a run, and end all processes afterwards."""
    threads = max(1, (os.cpu_count() or 1) // run.config.clients)
    with (
        tempfile.TemporaryDirectory(prefix="fedsat-", ignore_cleanup_errors=True) as work,
        LocalFederation(Path(work), threads=threads, logs=run.folder / LOGS) as federation,
    ):
        yield federation


def _check_memory(nodes: int) -> None:
    """Refuse more nodes than this machine has memory for; every node is several processes."""
    needed, free = nodes * NODE_BYTES, free_memory(torch.device("cpu"))
    if needed > free:
        raise UsageError(
            f"{nodes} nodes need {needed / 1e9:.1f} GB of memory, but only {free / 1e9:.1f} GB is free; "
            f"use fewer --nodes, or simulate them: fedsat run --clients {nodes}"
        )


def _show(console: Console, watcher: Watcher, record: RoundRecord, names: tuple[str, ...]) -> None:
    for note in record.left_out:
        who = "" if note["client"] is None else f"client {note['client']}: "
        say(console, f"round {record.round}, {note['stage']}: {who}{note['why']}")
    watcher.show(record, names)
