"""The command line: `fedsat run`, `compare`, `report` and the others.

Importing this package does not import torch. Each command is imported when it is used.
"""

try:
    from fedsat.threads import bound_spinning

    bound_spinning()  # before any command imports torch

    from fedsat.cli.main import main, run_app
except KeyboardInterrupt:  # Ctrl-C right at the start ends the program without a traceback
    raise SystemExit(130) from None

__all__ = ["main", "run_app"]
