"""`python -m reproduction list`, `run`, `show`, `tune`, `study` and `write`."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedsat.cli.options import AtOnce, read_settings
from fedsat.errors import UsageError, unknown
from fedsat.experiment.batch import carry_out
from fedsat.experiment.config import Config
from fedsat.experiment.jobs import Job
from fedsat.experiment.settings import full_name
from fedsat.experiment.store import ONLY_HOW, Shelf, StoredRun, identity
from fedsat.report.progress import ConsoleDisplay, say
from fedsat.report.tuning import Tuning
from reproduction import SCALES, STUDIES, Study, find
from reproduction.coverage import TABLES, coverage, coverage_of_tables
from reproduction.document import spread, write_document
from reproduction.parts import blocks, write_blocks
from reproduction.results import Key, Result, add_results, read_all, read_results, results_file, results_of
from reproduction.studies import ROUNDS, TUNED, Cell, cells, configure, select
from reproduction.tuning import SETTINGS, TRIALS, rows_of, search_of, write_choices, write_rows
from reproduction.verdict import Entry, compare, verdict_lines

app = typer.Typer(
    help="The paper's tables and figures: run them, and compare the results with the printed numbers.",
    rich_markup_mode=None,
)

Name = Annotated[
    str, typer.Argument(help="a table or figure, as listed by python -m reproduction list", show_default=False)
]
Results = Annotated[Path, typer.Option("--results", help="folder of the results files")]
Only = Annotated[
    str | None,
    typer.Option(help="cells to select, such as dataset=mnist,model=lenet5,method=fedavg,fedsat", show_default=False),
]
RESULTS, OUT = Path("results"), Path("runs/paper")
CHECKPOINTS = (1, 10, 20, 50, 100, 200, 400)
"""The rounds at which tables show curves."""


@app.command("list")
def list_studies() -> None:
    """List the tables and figures, their cells and numbers."""
    table = Table(box=box.SIMPLE_HEAD)
    for heading in ("", "what it shows", "runs", "numbers", "columns to select by"):
        table.add_column(heading, no_wrap=heading == "", overflow="fold")
    for study in STUDIES.values():
        own = cells(study)
        columns = dict.fromkeys([study.contender, *(key for cell in own for key, _ in cell.setting)])
        printed = sum(len(cell.printed) for cell in own)
        table.add_row(study.name, study.title, str(len(own)), str(printed or "–"), ", ".join(columns))
    console = Console()
    console.print(table)
    rounds = ", ".join(f"{model} {number}" for model, number in ROUNDS.items())
    for name, meaning in SCALES.items():
        say(console, f"--scale {name}: {meaning}" + (f" ({rounds} rounds)" if name == "full" else ""))


@app.command("run")
def run(
    name: Name,
    only: Only = None,
    scale: Annotated[str, typer.Option(help=", ".join(SCALES))] = "smoke",
    seeds: Annotated[int, typer.Option(help="runs of each cell, with this seed and the next ones", min=1)] = 1,
    seed: Annotated[
        int | None,
        typer.Option(help="the first seed [0; for choice, one that no table uses]", min=0, show_default=False),
    ] = None,
    also: Annotated[
        str | None, typer.Option(help="methods that the paper does not have, such as fedsat:paper", show_default=False)
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="any other setting, such as augment=crop-flip", metavar="KEY=VALUE"),
    ] = None,
    at_once: AtOnce = 1,
    out: Annotated[Path, typer.Option(help="folder of the runs, shared by all tables and figures")] = OUT,
    results: Annotated[
        Path | None, typer.Option(help="folder of the results files [results; OUT for smoke]", show_default=False)
    ] = None,
) -> None:
    """Run the cells of a table or figure that have no results yet, and store the results in a small file."""
    console, study = Console(), find(name)
    if scale not in SCALES:
        raise unknown("scale", scale, SCALES)
    settings, first = read_settings(set_ or []), study.seed if seed is None else seed
    others = [text.strip() for text in (also or "").split(",") if text.strip()]
    asked = [
        (cell, configure(study, cell, scale, number, settings))
        for number in range(first, first + seeds)
        for cell in select(study, _choice(only), others)
    ]
    shelf, path = Shelf(out), results_file(results or (out if scale == "smoke" else RESULTS), study, scale)
    extra = _changes(asked[0][1], settings)
    kept = {(result.key, result.seed): result.experiment for result in read_results(path)}
    chosen = [(cell, config) for cell, config in asked if not _is_kept(cell, config, extra, kept)]
    if len(chosen) < len(asked):
        say(console, f"{len(asked) - len(chosen)} of {len(asked)} runs have their results in {path} already")
    jobs = [Job(_run_name(study, cell, config), config) for cell, config in chosen]
    shown_in: dict[str, list[Cell]] = {}
    for cell, config in chosen:
        shown_in.setdefault(identity(config.table()), []).append(cell)

    def keep(done: Sequence[StoredRun]) -> None:
        """Store the results of runs as soon as they are complete, so that they are kept if the process ends early."""
        shown = ((cell, run) for run in done for cell in shown_in[identity(run.table)])
        add_results(path, [line for cell, run in shown for line in results_of(cell, extra, scale, run)])

    outcome = carry_out(ConsoleDisplay(console), jobs, shelf, at_once, keep)
    say(console, f"results: {path}")
    outcome.complain()


@app.command("show")
def show(
    name: Name,
    scale: Annotated[str | None, typer.Option(help="[the largest that has results]", show_default=False)] = None,
    results: Results = RESULTS,
) -> None:
    """Show our results next to the paper's, cell by cell, with a summary."""
    console, study = Console(), find(name)
    kept, used = _read(study, scale, results)
    entries = compare(study, kept, unrun=True)
    for where in dict.fromkeys(entry.where for entry in entries):
        console.print(_table(where or study.title, [entry for entry in entries if entry.where == where]))
    if not any(cell.printed for cell in cells(study)):
        console.print(_curves(kept))
    for line in verdict_lines(study, entries):
        say(console, line)
    say(console, f"{study.name}, {used}: {coverage(study, kept)}")
    if study.name in TABLES:
        say(console, coverage_of_tables(read_all(results)))
    if used == "smoke":
        say(console, "smoke uses other data and small networks: these results cannot be compared with the paper's")


@app.command("tune")
def tune(
    dataset: Annotated[str, typer.Argument(help=", ".join(SETTINGS), show_default=False)],
    methods: Annotated[str | None, typer.Option(help="methods to tune [all]", show_default=False)] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="any other setting, such as precision=bf16", metavar="KEY=VALUE"),
    ] = None,
    at_once: AtOnce = 1,
    out: Annotated[Path, typer.Option(help="folder of the runs, shared by all tables and figures")] = OUT,
    results: Results = RESULTS,
    tuned: Annotated[Path, typer.Option(help="the file for the chosen options")] = TUNED,
) -> None:
    """Choose each method's own option on a dataset, on samples that are held out of the training data."""
    console, names = Console(), [text.strip() for text in (methods or "").split(",") if text.strip()]
    search = search_of(dataset, names, read_settings(set_ or []))
    trials, outcome = search.run(ConsoleDisplay(console), Shelf(out), at_once)
    tuning = Tuning(trials, search.metric, outcome.failures)
    write_rows(results / TRIALS, rows_of(dataset, tuning))
    for method, options in write_choices(tuned, dataset, tuning).items():
        words = ", ".join(f"{key}={value}" for key, value in options.items())
        say(console, f"{dataset}  {method}  {words}")
    say(console, f"trials: {results / TRIALS}; choices: {tuned}")


@app.command("write")
def write(
    results: Results = RESULTS,
    out: Annotated[Path, typer.Option(help="the page")] = Path("docs/reproduction/results.md"),
    figure: Annotated[Path, typer.Option(help="its figure of ranks")] = Path("docs/assets/ranks.svg"),
) -> None:
    """Write the page of all results, and its figure."""
    say(Console(), f"page: {write_document(results, out, figure)}")


@app.command("study")
def study(
    results: Results = RESULTS,
    page: Annotated[
        Path | None, typer.Option(help="a page to write the tables to, between their marks", show_default=False)
    ] = None,
) -> None:
    """Print what each part and option of FedSat is worth, from the results of choice and defaults."""
    studies = [find(name) for name in ("choice", "defaults")]
    tables = blocks({(one.name, one.scale): _read(one, one.scale, results)[0] for one in studies})
    for name, lines in tables.items():
        typer.echo("\n".join([f"{name}:", "", *lines, ""]))
    if page:
        write_blocks(tables, page)


def _choice(only: str | None) -> dict[str, list[str]]:
    """Return the columns and values of `dataset=mnist,method=fedavg,fedsat`.

    A word without = is a further value. So is a variant such as `fedsat gamma=1.0`, because the names of columns
    contain no spaces.
    """
    choice: dict[str, list[str]] = {}
    for word in (only or "").split(","):
        key, equals, value = word.partition("=")
        if equals and " " not in key.strip():
            choice.setdefault(key.strip(), []).append(value.strip())
        elif word.strip():
            if not choice:
                raise UsageError(f"--only takes column=value, not {word!r}")
            choice[next(reversed(choice))].append(word.strip())
    return choice


def _is_kept(cell: Cell, config: Config, extra: str, kept: Mapping[tuple[Key, int], str]) -> bool:
    """Whether `kept` has the results of the same experiment; with different defaults, it is a different experiment."""
    wanted = identity(config.table(), without=("seed",))
    return kept.get(((cell.contender, cell.where, extra), config.seed)) == wanted


def _changes(config: Config, settings: Sequence[tuple[str, Any]]) -> str:
    """Return the settings that differ from the paper's protocol, with full names and in a fixed order."""
    full = {full_name(config.table(), key): value for key, value in settings}
    return ", ".join(f"{key}={value}" for key, value in sorted(full.items()) if key not in ONLY_HOW)


def _run_name(study: Study, cell: Cell, config: Config) -> str:
    """Return a readable name for a run's folder. It need not be unique: runs are identified by their configuration."""
    table = config.table()
    part, model = table["partition"], table["model"]
    who = cell.contender if study.contender in ("method", "variant") else f"{config.method}-{cell.contender}"
    setting = f"{table['dataset']}-{model['name']}-{part['name']}{part.get('classes_per_client', '')}-lr{table['lr']}"
    return f"{setting}-{who.replace(' ', '-')}-seed{table['seed']}"


def _read(study: Study, scale: str | None, folder: Path) -> tuple[list[Result], str]:
    """Return the results of a study, and their scale."""
    if scale is not None and scale not in SCALES:
        raise unknown("scale", scale, SCALES)
    for used in [scale] if scale else list(reversed(SCALES)):
        places = [folder, *([OUT] if used == "smoke" and folder == RESULTS else [])]
        for place in places:
            found = read_results(results_file(place, study, used))
            if found:
                return found, used
    command = ["python", "-m", "reproduction", "run", study.name, "--scale", scale or study.scale]
    if study.seed:
        command += ["--seed", str(study.seed)]
    if folder != RESULTS:
        command += ["--results", str(folder)]
    raise UsageError(f"{folder} has no results of {study.name} yet; run: {shlex.join(command)}")


def _table(title: str, entries: list[Entry]) -> Table:
    # Narrow padding, so that the table fits into 80 columns.
    table = Table(title=Text(title), box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    table.add_column("", min_width=12)
    for heading in ("paper", "ours, best\nround", "difference\nfrom paper", "ours, mean\nof last ten", "last", "seeds"):
        table.add_column(heading, justify="right", no_wrap=True)
    for entry in entries:
        table.add_row(
            f"{entry.contender} {entry.item}".strip(),
            "–" if entry.printed is None else f"{entry.printed:.2f}",
            spread(entry.best),
            "–" if entry.difference is None else f"{entry.difference:+.2f}",
            spread(entry.last_ten),
            f"{np.mean(entry.last):.2f}" if entry.last else "–",
            str(len(entry.last_ten)),
        )
    return table


def _curves(results: list[Result]) -> Table:
    """Accuracy at some rounds, for figures that are curves."""
    table = Table(title="accuracy at round", box=box.SIMPLE_HEAD)
    shown = sorted({number for result in results for number in result.curve if number in CHECKPOINTS})
    for heading in ("", "", "seed", *map(str, shown)):
        table.add_column(heading, justify="right")
    for result in results:
        points = [f"{result.curve[number]:.1f}" if number in result.curve else "–" for number in shown]
        table.add_row(*result.key[:2], str(result.seed), *points)
    return table
