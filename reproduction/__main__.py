"""`python -m reproduction`, from a checkout of the project."""

from fedsat.cli import run_app
from reproduction.commands import app

run_app(app, "python -m reproduction")
