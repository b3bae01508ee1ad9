"""`fedsat run`, `fedsat resume`, `fedsat compare` and `fedsat report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedsat import experiment
from fedsat.cli.options import (
    AtOnce,
    Grid,
    Methods,
    Out,
    Seeds,
    Settings,
    configured,
    read_grid,
    read_names,
    read_settings,
)
from fedsat.cli.sections import EVALUATION, OUTPUT
from fedsat.errors import UsageError
from fedsat.experiment import Callbacks, Run
from fedsat.experiment.batch import carry_out, train_shown
from fedsat.experiment.config import Config
from fedsat.experiment.defaults import Given
from fedsat.experiment.folder import NODE_STATES, free_folder
from fedsat.experiment.jobs import batch_folder, folder_name, plan
from fedsat.experiment.legacy import warn
from fedsat.experiment.store import Shelf, StoredRun
from fedsat.report.export import check_table
from fedsat.report.groups import find_runs
from fedsat.report.progress import ConsoleDisplay, describe_setup, say
from fedsat.report.side_by_side import Comparison
from fedsat.report.tables import class_table, comparison_table, run_table, served_line

PAGE = "report.html"

Hooks = Annotated[
    list[str] | None,
    typer.Option(
        "--callback",
        help="a callback of your own, as module:Name; can be repeated",
        metavar="NAME",
        show_default=False,
        rich_help_panel=OUTPUT,
    ),
]


@configured()
def run(given: Given, out: Out = None, callback: Hooks = None) -> None:
    """Train one federation and show the results.

    The configuration, the metrics of every round, checkpoints and the model are written to OUT.
    """
    console, config = Console(), Config.of(given.table)
    folder = out or free_folder(Path("runs"), folder_name(config, f"{config.method}-seed{config.seed}"))
    callbacks = experiment.find_callbacks(callback or [])
    _carry_out(console, experiment.prepare(config, folder), folder, callbacks)


def resume(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="folder of the run", show_default=False)],
    rounds: Annotated[
        int | None,
        typer.Option(help="rounds in total [default: those of the run]", min=1, metavar="N", show_default=False),
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option(help="minutes in total [default: those of the run]", min=0, metavar="NUMBER", show_default=False),
    ] = None,
    callback: Hooks = None,
) -> None:
    """Continue a run from its last checkpoint, or to more rounds or minutes.

    The result is the same as that of a run without interruption. For a run of fedsat federate, the nodes are started
    again.
    """
    if (folder / NODE_STATES).is_dir():
        if callback:
            raise UsageError("callbacks are only available in simulations, not on real nodes")
        from fedsat.cli.federate import resume_on_nodes  # noqa: PLC0415 (it imports this module)

        resume_on_nodes(folder, rounds, minutes)
        return
    callbacks = experiment.find_callbacks(callback or [])
    _carry_out(Console(), experiment.restore(folder, rounds, minutes=minutes), folder, callbacks)


def _carry_out(console: Console, prepared: Run, folder: Path, callbacks: Callbacks) -> None:
    say(console, describe_setup(prepared))
    train_shown(ConsoleDisplay(console), prepared, callbacks=callbacks)
    show_run(console, StoredRun.read(folder))
    say(console, f"files: {folder}")


def show_run(console: Console, stored: StoredRun) -> None:
    """Print the results of a run, and the results of each class if the run has metrics of classes."""
    console.print(run_table(stored))
    if (classes := class_table(stored)) is not None:
        console.print(classes)
    say(console, served_line(stored))


Target = Annotated[
    float | None,
    typer.Option(
        help="accuracy in per cent; adds the number of rounds until each method reaches and keeps it",
        min=0,
        max=100,
        metavar="NUMBER",
        show_default=False,
        rich_help_panel=EVALUATION,
    ),
]

Figures = Annotated[
    Path | None,
    typer.Option(
        "--figures",
        help="folder for the charts as PNG, SVG and PDF files",
        show_default=False,
        rich_help_panel=OUTPUT,
    ),
]
TableFile = Annotated[
    Path | None,
    typer.Option(
        "--table",
        help="file for the table, FILE.csv or FILE.tex (LaTeX)",
        metavar="FILE",
        show_default=False,
        rich_help_panel=OUTPUT,
    ),
]


FormerMethods = Annotated[str | None, typer.Option("--algorithms", hidden=True)]
"""The name of `--methods` in fedsat 0.1."""


@configured(without=("algorithm", "with_", "without", "set_"))
def compare(
    given: Given,
    methods: Methods = "fedavg,scaffold,fedsat",
    algorithms: FormerMethods = None,
    seeds: Seeds = 1,
    set_: Settings = None,
    grid: Grid = None,
    target: Target = None,
    at_once: AtOnce = 1,
    out: Out = None,
    figures: Figures = None,
    table_file: TableFile = None,
) -> None:
    """Train the same federation with several methods and show them side by side.

    Finished runs in OUT are not repeated, and unfinished ones continue from their last checkpoint. You can therefore
    interrupt a comparison and repeat the command, with more methods or seeds if needed. Without --out, a comparison
    with other settings gets its own folder.
    """
    if table_file is not None:
        check_table(table_file)
    if algorithms is not None:
        warn(["--algorithms is now called --methods"])
    console = Console()
    jobs = plan(given, read_names(algorithms or methods), seeds, read_settings(set_ or []), read_grid(grid or []))
    folder = out or batch_folder(Path("runs"), "compare", jobs)
    outcome = carry_out(ConsoleDisplay(console), jobs, Shelf(folder), at_once)
    if outcome.runs:
        compared = Comparison(outcome.runs, _share(target))
        _show(console, compared, figures, table_file)
        say(console, f"files: {folder}")
        say(console, f"page: {compared.report(folder / PAGE)}")
    outcome.complain()


def report(
    runs: Annotated[list[Path], typer.Argument(help="folders of runs or of comparisons", show_default=False)],
    out: Annotated[Path, typer.Option(help="file for the page", rich_help_panel=OUTPUT)] = Path(PAGE),
    target: Target = None,
    figures: Figures = None,
    table_file: TableFile = None,
) -> None:
    """Write a page that shows runs side by side: curves, classes, clients, weights, a table and the configuration."""
    if table_file is not None:
        check_table(table_file)
    console, found = Console(), find_runs(runs)
    compared = Comparison(found, _share(target))
    bare = [str(run.folder) for run in found if not run.evaluated]
    if bare:
        say(console, f"left out, because no round was evaluated: {', '.join(bare)}")
    _show(console, compared, figures, table_file)
    say(console, f"page: {compared.report(out)}")


def _share(percent: float | None) -> float | None:
    return None if percent is None else percent / 100


def _show(console: Console, compared: Comparison, figures: Path | None, table_file: Path | None) -> None:
    """Print the table, and write figures and table to files if asked to."""
    console.print(comparison_table(compared.groups, compared.target))
    if figures is not None:
        compared.write_figures(figures)
        say(console, f"figures: {figures}")
    if table_file is not None:
        say(console, f"table: {compared.write_table(table_file)}")
