"""The commands together, and how their errors end: one line on stderr, 2 for wrong use, 1 for failure."""

from __future__ import annotations

import sys
import warnings
from typing import Annotated

import typer
import typer.core
from rich.console import Console

from fedsat.cli import data, federate, listing, training
from fedsat.errors import FedsatError, UsageError, in_a_line
from fedsat.experiment.interrupt import Terminated
from fedsat.version import __version__

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it."""

setattr(typer.core, "HAS_RICH", False)  # noqa: B010 (our help is plain; typer 0.20 escapes its brackets otherwise)
app = typer.Typer(
    help="Federated learning for clients with imbalanced, rare and missing classes.",
    add_completion=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("run")(training.run)
app.command("resume")(training.resume)
app.command("compare")(training.compare)
app.command("report")(training.report)
app.command("federate")(federate.federate)
app.add_typer(data.app, name="data")
app.command("list")(listing.show)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"fedsat {__version__}")
        raise typer.Exit


@app.callback()
def _common(
    debug: Annotated[bool, typer.Option("--debug", help="show the traceback of an error")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="print the version")
    ] = False,
) -> None:
    del debug, version  # `run_app` handles --debug, because errors end there


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit."""
    run_app(app, "fedsat", arguments)


def run_app(commands: typer.Typer, name: str, arguments: list[str] | None = None) -> None:
    """Run the commands of a program called `name` and exit; errors end as one line."""
    given = (sys.argv[1:] if arguments is None else arguments) or ["--help"]
    debug = "--debug" in given
    warnings.showwarning = lambda message, *_: _say(name, f"note: {message}")
    # --debug may stand anywhere in the call.
    sys.exit(_carry_out(commands, name, [argument for argument in given if argument != "--debug"], debug))


def _carry_out(commands: typer.Typer, name: str, arguments: list[str], debug: bool) -> int:
    try:
        result = commands(arguments, standalone_mode=False, prog_name=name)
        if result == INTERRUPTED:  # a newer typer's word for Ctrl-C; older ones raise Abort
            _say(name, "stopped")
        return result if isinstance(result, int) else 0
    except (KeyboardInterrupt, typer.Abort):
        _say(name, "stopped")
        return INTERRUPTED
    except Terminated as stop:
        _say(name, "stopped")
        return int(stop.code or 0)
    except Exception as error:
        if hasattr(error, "format_message"):  # a wrong use of the command line: click's error, or newer typers' own
            _say(name, " ".join(error.format_message().split()) + " (--help shows what there is)")
            return 2
        if debug:
            raise
        _say(name, in_a_line(error) + ("" if isinstance(error, FedsatError) else " (--debug shows where)"))
        return 2 if isinstance(error, UsageError) else 1


def _say(name: str, line: str) -> None:
    console = Console(stderr=True, soft_wrap=True, highlight=False)
    console.print(f"{name}: {line}", markup=False)
