"""`fedsat tune`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

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
from fedsat.cli.sections import SEARCH
from fedsat.experiment.defaults import Given
from fedsat.experiment.jobs import batch_folder, contenders
from fedsat.experiment.store import Shelf
from fedsat.experiment.tuning import HOLDOUT, Search
from fedsat.report.progress import ConsoleDisplay, say
from fedsat.report.tables import terminal_table
from fedsat.report.tuning import TRIALS, Tuning


@configured(without=("algorithm", "with_", "without", "set_", "holdout"))
def tune(
    given: Given,
    methods: Methods = "fedavg,scaffold,fedsat",
    seeds: Seeds = 1,
    set_: Settings = None,
    grid: Grid = None,
    metric: Annotated[str, typer.Option(help="metric to choose by", metavar="NAME", rich_help_panel=SEARCH)] = (
        "balanced_accuracy"
    ),
    trials: Annotated[
        int | None,
        typer.Option(
            help="choices of the grid that each method tries, at random [default: as many as the smallest grid has]",
            min=1,
            metavar="N",
            show_default=False,
            rich_help_panel=SEARCH,
        ),
    ] = None,
    sampler: Annotated[
        str,
        typer.Option(
            help="how choices are made: grid, or optuna (one after another, by the results so far)",
            metavar="NAME",
            rich_help_panel=SEARCH,
        ),
    ] = "grid",
    holdout: Annotated[
        float,
        typer.Option(
            help="share of the training data that is held out, to choose by", metavar="NUMBER", rich_help_panel=SEARCH
        ),
    ] = HOLDOUT,
    at_once: AtOnce = 1,
    out: Out = None,
) -> None:
    """Search for the best settings of each method, on samples that are held out of the training data.

    The test set is not used, and every method has the same number of trials. Finished runs in OUT are not repeated.
    OUT gets the table tuning.csv, and the chosen configuration of each method in best/METHOD.toml.
    """
    console = Console()
    given = given.also([("holdout", holdout)])
    found = contenders(given, read_names(methods), seeds, read_settings(set_ or []), read_grid(grid or []))
    search = Search.of(found, metric, trials, sampler)
    jobs = [job for each in found for choice in each.choices for job in each.jobs(choice)]
    folder = out or batch_folder(Path("runs"), "tune", jobs)
    done, outcome = search.run(ConsoleDisplay(console), Shelf(folder), at_once)
    tuning = Tuning(done, search.metric, outcome.failures)
    console.print(terminal_table(tuning.table))
    for method, file in tuning.write(folder).items():
        say(console, f"best {method}: {file}")
    say(console, f"table: {folder / TRIALS}")
    outcome.complain()
