"""`fedsat run`, `fedsat resume`, `fedsat compare` and `fedsat report`."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Console

from fedsat import experiment
from fedsat.algorithms import algorithms
from fedsat.cli.batch import Job, carry_out, say, train
from fedsat.cli.options import AtOnce, configured, read_settings, split_setting
from fedsat.errors import UsageError, unknown
from fedsat.experiment import Callbacks, Run
from fedsat.experiment.config import (
    Config,
    full_name,
    names_a_part,
    override,
    parse_values,
    setting_names,
)
from fedsat.experiment.folder import free_folder
from fedsat.experiment.parts import method_parts
from fedsat.experiment.store import Shelf, StoredRun, file_name
from fedsat.report.groups import find_runs, group_runs
from fedsat.report.tables import comparison_table, run_table

PAGE = "report.html"
OWN_WORDS = {"seed": "--seed and --seeds", "algorithm": "--methods"}
"""Settings for which a comparison has options of its own."""

T = TypeVar("T")

Out = Annotated[
    Path | None,
    typer.Option("--out", help="folder for the files [runs/ and a name made from the settings]", show_default=False),
]


Hooks = Annotated[
    list[str] | None,
    typer.Option(
        "--callback", help="a callback of your own, as module:Name; may be repeated", metavar="NAME", show_default=False
    ),
]


@configured()
def run(table: dict[str, Any], out: Out = None, callback: Hooks = None) -> None:
    """Train one federation and show what it learned."""
    console, config = Console(), Config.of(table)
    folder = out or free_folder(Path("runs"), folder_name(config, f"{config.method}-seed{config.seed}"))
    callbacks = experiment.find_callbacks(callback or [])
    _carry_out(console, experiment.prepare(config, folder), folder, callbacks)


def resume(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="the run's folder", show_default=False)],
    rounds: Annotated[
        int | None, typer.Option(help="rounds to play in all [as the run has it]", min=1, show_default=False)
    ] = None,
    callback: Hooks = None,
) -> None:
    """Continue a run from its last checkpoint, as if it had never stopped, or to more rounds."""
    callbacks = experiment.find_callbacks(callback or [])
    _carry_out(Console(), experiment.load_checkpointed(folder, rounds), folder, callbacks)


def _carry_out(console: Console, prepared: Run, folder: Path, callbacks: Callbacks) -> None:
    train(console, prepared, callbacks=callbacks)
    console.print(run_table(StoredRun.read(folder)))
    say(console, f"files: {folder}")


Target = Annotated[
    float | None,
    typer.Option(help="accuracy in per cent; shows the rounds until it is held", min=0, max=100, metavar="NUMBER"),
]


@configured(without=("algorithm", "with_", "without", "set_"))
def compare(
    table: dict[str, Any],
    methods: Annotated[
        str,
        typer.Option(
            "--methods",
            "--algorithms",
            help="methods to compare, separated by commas; fedsat-pwa leaves a part out, fedavg+psl puts one on",
        ),
    ] = "fedavg,scaffold,fedsat",
    seeds: Annotated[int, typer.Option(help="runs of each, with this seed and the next ones", min=1)] = 1,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set", help="any other setting, of all methods that have it; may be repeated", metavar="KEY=VALUE"
        ),
    ] = None,
    grid: Annotated[
        list[str] | None,
        typer.Option(help="values of a setting to try, each with all others; may be repeated", metavar="KEY=A,B,C"),
    ] = None,
    target: Target = None,
    at_once: AtOnce = 1,
    out: Out = None,
) -> None:
    """Train the same federation with several methods and show them side by side.

    Runs that OUT has already are not repeated and begun ones go on from their last checkpoint, so a comparison can be
    interrupted, and methods or seeds can be added.
    """
    console = Console()
    jobs = _jobs(table, methods, seeds, read_settings(set_ or []), [_values(text) for text in grid or []])
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
    target: Target = None,
    figures: Annotated[
        Path | None, typer.Option(help="folder for the same figures as PNG and SVG", show_default=False)
    ] = None,
) -> None:
    """Write one page that shows runs side by side: curves, classes, clients, weights, table, configuration."""
    from fedsat.report.page import write_page  # noqa: PLC0415 (not needed to train)

    console, share = Console(), None if target is None else target / 100
    found = find_runs(runs)
    groups = group_runs(found)
    if not groups:
        raise UsageError("none of these runs has been evaluated yet: there is nothing to show")
    bare = [str(run.folder) for run in found if not run.evaluated]
    if bare:
        say(console, f"left out, because no round was evaluated: {', '.join(bare)}")
    console.print(comparison_table(groups, share))
    if figures is not None:
        from fedsat.report.figures import write_figures  # noqa: PLC0415 (matplotlib is slow to import)

        write_figures(groups, figures)
        say(console, f"figures: {figures}")
    say(console, f"page: {write_page(groups, out, share)}")


def _jobs(
    table: dict[str, Any],
    methods: str,
    seeds: int,
    settings: list[tuple[str, Any]],
    grid: list[tuple[str, list[Any]]],
) -> list[Job]:
    """One job for each method, choice of the grid and seed; a method without a setting has it left out."""
    names = [name.strip() for name in methods.split(",") if name.strip()]
    if not names:
        raise UsageError(f"--methods names no method; known: {', '.join(algorithms)}")
    tables = [override(table, *method_parts(name)) for name in dict.fromkeys(names)]
    parts = [(key, value) for key, value in settings if names_a_part(key)]  # they bring options of their own
    tables = [override(own, _had(own, parts)) for own in tables]
    _check_names([key for key, _ in (*settings, *grid)], tables)
    jobs = []
    for plain in tables:
        own = override(plain, _had(plain, settings))
        choices = [[(key, value) for value in values] for key, values in _had(own, grid)]
        for chosen in itertools.product(*choices):
            for seed in range(own["seed"], own["seed"] + seeds):
                config = Config.of(override(own, [*chosen, ("seed", seed)]))
                words = [config.method, *(f"{key}={value}" for key, value in chosen), f"seed{seed}"]
                jobs.append(Job("-".join(words), config))
    return jobs


def _had(table: Mapping[str, Any], settings: Iterable[tuple[str, T]]) -> list[tuple[str, T]]:
    """Those of the settings that a method's table has."""
    known = setting_names(table)
    return [(key, value) for key, value in settings if key in known]


def _check_names(keys: Sequence[str], tables: Sequence[Mapping[str, Any]]) -> None:
    """That each name is a setting of some method, is given once, and is not one that has an option of its own."""
    given: set[str] = set()
    known = [setting_names(table) for table in tables]
    for key in keys:
        owner = next((table for table, names in zip(tables, known, strict=True) if key in names), None)
        if owner is None:
            raise unknown("setting", key, {name for names in known for name in names if "." not in name})
        full = full_name(owner, key)
        if full in OWN_WORDS:
            raise UsageError(f"a comparison takes its {full} from {OWN_WORDS[full]}")
        if full in given:
            raise UsageError(f"{full} is given twice; --grid {key}=A,B tries several values")
        given.add(full)


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
