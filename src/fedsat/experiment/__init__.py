"""Whole runs: their configuration, their course, and what they leave on disk."""

from fedsat.experiment.callbacks import Callback, Callbacks, find_callbacks
from fedsat.experiment.config import Config
from fedsat.experiment.resume import load_checkpointed
from fedsat.experiment.run import Run, Setup, prepare, train

__all__ = [
    "Callback",
    "Callbacks",
    "Config",
    "Run",
    "Setup",
    "find_callbacks",
    "load_checkpointed",
    "prepare",
    "train",
]
