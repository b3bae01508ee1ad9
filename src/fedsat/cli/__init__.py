"""The command line: `fedsat run`, `compare`, `data`, `list`."""

from fedsat.cli.main import main, run_app

__all__ = ["main", "run_app"]
