"""`fedsat run`, `fedsat resume`, `fedsat compare` and `fedsat report`."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from fedsat import experiment
from fedsat.algorithms import algorithms
from fedsat.cli.batch import Job, carry_out, say, train
from fedsat.cli.options import AtOnce, configured, split_setting
from fedsat.errors import UsageError, unknown
from fedsat.experiment import Run
from fedsat.experiment.config import Config, method_parts, override, parse_values, setting_names
from fedsat.experiment.record import free_folder
from fedsat.experiment.store import Shelf, StoredRun, file_name
from fedsat.report.groups import find_runs, group_runs
from fedsat.report.tables import comparison_table, run_table

PAGE = "report.html"

Out = Annotated[
    Path | None,
    typer.Option("--out", help="folder for the files [runs/ and a name made from the settings]", show_default=False),
]


@configured()
def run(table: dict[str, Any], out: Out = None) -> None:
    """Train one federation and show what it learned."""
    console, config = Console(), Config.of(table)
    folder = out or free_folder(Path("runs"), folder_name(config, f"{config.method}-seed{config.seed}"))
    _carry_out(console, experiment.prepare(config, folder), folder)


def resume(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="the run's folder", show_default=False)],
    rounds: Annotated[
        int | None, typer.Option(help="rounds to play in all [as the run has it]", min=1, show_default=False)
    ] = None,
) -> None:
    """Go on with a run from its last checkpoint, as if it had never stopped, or to more rounds."""
    _carry_out(Console(), experiment.take_up(folder, rounds), folder)


def _carry_out(console: Console, prepared: Run, folder: Path) -> None:
    train(console, prepared)
    console.print(run_table(StoredRun.read(folder)))
    say(console, f"files: {folder}")


@configured(without=("algorithm", "with_", "without"))
def compare(
    table: dict[str, Any],
    algorithms_: Annotated[
        str,
        typer.Option(
            "--algorithms",
            help="methods to compare, separated by commas; fedsat-pwa leaves a part out, fedavg+psl puts one on",
        ),
    ] = "fedavg,scaffold,fedsat",
    seeds: Annotated[int, typer.Option(help="runs of each, with this seed and the next ones", min=1)] = 1,
    grid: Annotated[
        list[str] | None,
        typer.Option(help="values of a setting to try, each with all others; may be repeated", metavar="KEY=A,B,C"),
    ] = None,
    target: Annotated[
        float | None,
        typer.Option(help="accuracy in per cent; shows the rounds until it is held", min=0, max=100, metavar="NUMBER"),
    ] = None,
    at_once: AtOnce = 1,
    out: Out = None,
) -> None:
    """Train the same federation with several methods and show them side by side.

    Runs that OUT has already are not repeated and begun ones go on from their last checkpoint, so a comparison can be
    interrupted, and methods or seeds can be added.
    """
    console = Console()
    jobs = _jobs(table, algorithms_, seeds, grid or [])
    folder = out or Path("runs") / folder_name(jobs[0].config, "compare")
    outcome = carry_out(console, jobs, Shelf(folder), at_once)
    groups = group_runs(outcome.runs)
    if groups:
        from fedsat.report.page import write_page  # noqa: PLC0415 (not needed to train)

        share = None if target is None else target / 100
        console.print(comparison_table(groups, share))
        page = write_page(groups, folder / PAGE, share)
        say(console, f"files: {folder}")
        say(console, f"page: {page}")
    outcome.complain()


def report(
    runs: Annotated[list[Path], typer.Argument(help="folders of runs, or of comparisons", show_default=False)],
    out: Annotated[Path, typer.Option(help="the page")] = Path(PAGE),
    target: Annotated[
        float | None,
        typer.Option(help="accuracy in per cent; shows the rounds until it is held", min=0, max=100, metavar="NUMBER"),
    ] = None,
    figures: Annotated[
        Path | None, typer.Option(help="folder for the same figures as PNG and SVG", show_default=False)
    ] = None,
) -> None:
    """Write one page that shows runs side by side: curves, classes, clients, weights, table, configuration."""
    from fedsat.report.page import write_page  # noqa: PLC0415 (not needed to train)

    console, share = Console(), None if target is None else target / 100
    groups = group_runs(find_runs(runs))
    if not groups:
        raise UsageError("none of these runs has been evaluated yet: there is nothing to show")
    console.print(comparison_table(groups, share))
    if figures is not None:
        from fedsat.report.figures import write_figures  # noqa: PLC0415 (matplotlib is slow to import)

        write_figures(groups, figures)
        say(console, f"figures: {figures}")
    say(console, f"page: {write_page(groups, out, share)}")


def _jobs(table: dict[str, Any], methods: str, seeds: int, grid: list[str]) -> list[Job]:
    """One job for each method, choice of the grid and seed; a method without a grid's setting has it left out."""
    names = [name.strip() for name in methods.split(",") if name.strip()]
    if not names:
        raise UsageError(f"--algorithms names no method; known: {', '.join(algorithms)}")
    swept = dict(_values(text) for text in grid)
    tables = {name: override(table, *method_parts(name)) for name in dict.fromkeys(names)}
    known = {name: setting_names(own) for name, own in tables.items()}
    for key in swept:
        if not any(key in own for own in known.values()):
            raise unknown("setting", key, set().union(*known.values()))
    jobs = []
    for name, own in tables.items():
        choices = [[(key, value) for value in values] for key, values in swept.items() if key in known[name]]
        for settings in itertools.product(*choices):
            for seed in range(own["seed"], own["seed"] + seeds):
                config = Config.of(override(own, [*settings, ("seed", seed)]))
                words = [config.method, *(f"{key}={value}" for key, value in settings), f"seed{seed}"]
                jobs.append(Job("-".join(words), config))
    return jobs


def _values(text: str) -> tuple[str, list[Any]]:
    key, values = split_setting(text, "--grid")
    parsed = parse_values(values)
    if not parsed:
        raise UsageError(f"--grid {text!r} gives {key} no value")
    return key, parsed


def folder_name(config: Config, what: str) -> str:
    """The name of a folder in `runs`: data, how it is split, what is done."""
    partition = config.table()["partition"]["name"]
    return file_name(f"{Path(config.dataset).name}-{partition}-{what}")
