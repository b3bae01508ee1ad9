"""Whole runs: their configuration, their course, and what they leave on disk."""

from fedsat.experiment.config import Config
from fedsat.experiment.resume import load_checkpointed
from fedsat.experiment.run import OnRound, Run, Setup, prepare, train

__all__ = ["Config", "OnRound", "Run", "Setup", "load_checkpointed", "prepare", "train"]
