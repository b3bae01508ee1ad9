"""Whole runs: their configuration, their course, and what they leave on disk."""

from fedsat.experiment.config import Config
from fedsat.experiment.resume import take_up
from fedsat.experiment.run import OnRound, Run, Setup, carry_on, prepare

__all__ = ["Config", "OnRound", "Run", "Setup", "carry_on", "prepare", "take_up"]
