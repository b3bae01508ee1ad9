"""The command line: `fedsat run`, `compare`, `data`, `list`."""

from fedsat.cli.main import main

__all__ = ["main"]
