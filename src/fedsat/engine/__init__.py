"""Engines: train the clients of a round one after another, or all at once on a CPU or GPU."""

from fedsat.engine.choose import EngineName, Precision, make_engine
from fedsat.engine.sequential import SequentialEngine
from fedsat.engine.stacked import StackedEngine

__all__ = ["EngineName", "Precision", "SequentialEngine", "StackedEngine", "make_engine"]
