"""The program: its commands and exit codes.

An error is printed as one line on stderr. The exit code is 2 for wrong use and 1 for a failure.
"""

from __future__ import annotations

import signal
import sys
import traceback
import warnings
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Annotated

import typer

from fedsat.cli.layout import INTERRUPTED, Entry, Group
from fedsat.errors import FedsatError, UsageError, in_a_line
from fedsat.version import __version__

ENDED_BY_SIGNAL = {INTERRUPTED: "interrupted", 128 + signal.SIGTERM: "terminated", 128 + 1: "hung up"}
"""Exit codes after SIGINT, SIGTERM and SIGHUP, as in shells, and the words that are printed."""

TRAIN, USE, LOOK, NODES = "Train", "Use", "Look", "Real nodes"
COMMANDS = {
    "run": Entry(TRAIN, "Train one federation and show the results.", "training", "run"),
    "compare": Entry(TRAIN, "Train the same federation with several methods.", "training", "compare"),
    "tune": Entry(TRAIN, "Search for the best settings of each method, without test data.", "tuning", "tune"),
    "resume": Entry(TRAIN, "Continue a run from its last checkpoint, or to more rounds.", "training", "resume"),
    "predict": Entry(USE, "Predict the classes of new data with a trained model.", "using", "predict"),
    "evaluate": Entry(USE, "Evaluate a trained model on new data.", "using", "evaluate"),
    "export": Entry(USE, "Write a trained model to a file that works without fedsat.", "using", "export"),
    "look": Entry(LOOK, "Look at data before training, and get suggestions.", "look", "look"),
    "report": Entry(LOOK, "Write a page that shows runs side by side.", "training", "report"),
    "list": Entry(LOOK, "List methods, models, datasets and so on, with their options.", "listing", "show"),
    "data": Entry(
        LOOK,
        "Download datasets, list them, and show how they are split.",
        commands={
            "get": Entry("Commands", "Download a dataset, or copy it from a folder.", "data", "get"),
            "list": Entry(
                "Commands", "List the known datasets, and which ones are on this machine.", "data", "catalogue"
            ),
            "show": Entry(
                "Commands", "Show how a dataset is split among clients (same as fedsat look).", "look", "look"
            ),
        },
    ),
    "federate": Entry(NODES, "Train on real nodes with Flower, started on this machine.", "federate", "federate"),
    "keys": Entry(NODES, "Create the certificates and keys of a federation.", "keys", "keys"),
    "status": Entry(NODES, "Show what the nodes of a run are doing.", "status", "status"),
    "superlink": Entry(NODES, "Start a server for nodes on other machines.", "superlink", "superlink"),
    "supernode": Entry(NODES, "Start a node with the data of this machine.", "supernode", "supernode"),
}


class Program(Group):
    """`fedsat` itself."""

    entries = COMMANDS


app = typer.Typer(
    cls=Program,
    help="Federated learning for clients with imbalanced, rare and missing classes.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,  # typer's tracebacks print the values of all variables, including tensors
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"fedsat {__version__}")
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    del debug, version  # `run_app` handles --debug, because errors end there


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit."""
    run_app(app, "fedsat", arguments)


def run_app(commands: typer.Typer, name: str, arguments: list[str] | None = None) -> None:
    """Run the program `name` with its commands, and exit. Errors end as one line."""
    given = (sys.argv[1:] if arguments is None else arguments) or ["--help"]
    debug = "--debug" in given
    warnings.showwarning = lambda message, *_: _print_error(name, f"note: {message}")
    # --debug may appear anywhere on the command line.
    sys.exit(_exit_code(commands, name, [argument for argument in given if argument != "--debug"], debug))


def _exit_code(commands: typer.Typer, name: str, arguments: list[str], debug: bool) -> int:
    """Run the program; report how it ended, and return its exit code."""
    try:
        result = commands(arguments, standalone_mode=False, prog_name=name)
        code = result if isinstance(result, int) else 0
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0
    except Exception as error:
        if debug:
            _print_traceback(error)
        return _report(name, error)
    if code in ENDED_BY_SIGNAL:
        with suppress(OSError):  # after SIGHUP, the terminal is gone
            _print_error(name, ENDED_BY_SIGNAL[code])
    return code


def _report(name: str, error: Exception) -> int:
    """Print an error as one line, and return its exit code."""
    if hasattr(error, "format_message"):  # wrong use of the command line: an error of click, or of a newer typer
        text = " ".join(error.format_message().split())
        _print_error(name, f"{text.rstrip('.')} (see {_help_command(name, error)})")
        return 2
    _print_error(name, in_a_line(error) + ("" if isinstance(error, FedsatError) else " (--debug shows the traceback)"))
    return 2 if isinstance(error, UsageError) else 1


def _help_command(name: str, error: Exception) -> str:
    context = getattr(error, "ctx", None)
    return f"{context.command_path if context else name} --help"


def _print_traceback(error: Exception) -> None:
    """Print the traceback without its first frames, which belong to typer and click."""
    frames = error.__traceback__
    while frames is not None and _is_machinery(frames):
        frames = frames.tb_next
    traceback.print_exception(error.with_traceback(frames or error.__traceback__))


def _is_machinery(frame: TracebackType) -> bool:
    path = Path(frame.tb_frame.f_code.co_filename)
    return path == Path(__file__) or path.parent.name in ("typer", "click", "_click")


def _print_error(name: str, line: str) -> None:
    typer.echo(f"{name}: {line}", err=True)
