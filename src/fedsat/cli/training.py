"""`fedsat run` and `fedsat compare`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from fedsat import experiment
from fedsat.algorithms import algorithms
from fedsat.cli.options import configured
from fedsat.cli.screen import Watcher, describe_setup
from fedsat.errors import FedsatError, UsageError
from fedsat.experiment.config import Config, override
from fedsat.experiment.record import free_folder
from fedsat.report.plots import save_curves
from fedsat.report.tables import comparison_table, run_table

Out = Annotated[
    Path | None,
    typer.Option("--out", help="folder for the files [runs/ and a name made from the settings]", show_default=False),
]


@configured()
def run(table: dict[str, Any], out: Out = None) -> None:
    """Train one federation and show what it learned."""
    console, config = Console(), Config.of(table)
    folder = out or free_folder(Path("runs"), _name(config, config.method))
    finished = _train(console, config, folder)
    console.print(run_table(finished))
    console.print(f"files: {folder}", markup=False, highlight=False)


@configured(without=("algorithm",))
def compare(
    table: dict[str, Any],
    algorithms_: Annotated[
        str, typer.Option("--algorithms", help="methods to compare, separated by commas")
    ] = "fedavg,fedsat",
    out: Out = None,
) -> None:
    """Train the same federation with several methods and show them side by side."""
    console = Console()
    names = [name.strip() for name in algorithms_.split(",") if name.strip()]
    if not names:
        raise UsageError(f"--algorithms names no method; known: {', '.join(algorithms)}")
    configs = [Config.of(override(table, [("algorithm", name)])) for name in names]
    folder = out or free_folder(Path("runs"), _name(configs[0], "compare"))
    runs = {config.method: _train(console, config, folder / config.method) for config in configs}
    console.print(comparison_table(list(runs.values())))
    picture = folder / "comparison.png"
    save_curves({method: finished.metrics for method, finished in runs.items()}, picture)
    console.print(f"files: {folder}   picture: {picture}", markup=False, highlight=False)


def _name(config: Config, what: str) -> str:
    """The name of a run's folder: data, how it is split, what is done, seed."""
    partition = config.table()["partition"]["name"]
    name = f"{Path(config.dataset).name}-{partition}-{what}-seed{config.seed}"
    return name.replace(":", ".").replace("/", ".")


def _train(console: Console, config: Config, folder: Path) -> experiment.Run:
    """Carry out one run under the user's eyes."""
    prepared = experiment.prepare(config, folder)
    console.print(describe_setup(prepared), markup=False, highlight=False)
    for note in prepared.notes:
        console.print(f"note: {note}", markup=False, highlight=False)
    try:
        with Watcher(console, config.method, config.rounds) as watcher:
            return experiment.carry_on(prepared, watcher)
    except (KeyboardInterrupt, FedsatError):
        rounds = prepared.training.rounds
        console.print(f"{rounds} rounds are kept in {folder}", markup=False, highlight=False)
        raise
