"""Runs: configuration, training, files, checkpoints, and batches of several runs."""

from fedsat.experiment.callbacks import Callback, Callbacks, find_callbacks
from fedsat.experiment.config import Config
from fedsat.experiment.resume import restore
from fedsat.experiment.run import Run, prepare, train
from fedsat.experiment.setup import Setup

__all__ = [
    "Callback",
    "Callbacks",
    "Config",
    "Run",
    "Setup",
    "find_callbacks",
    "prepare",
    "restore",
    "train",
]
