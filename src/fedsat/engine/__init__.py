"""Engines: train the clients of a round one after another, all at once on a CPU or GPU, or on several GPUs."""

from fedsat.engine.choose import Compile, EngineName, Precision, make_engine
from fedsat.engine.sequential import SequentialEngine
from fedsat.engine.shared import LocalEngine, Peer, SharedEngine
from fedsat.engine.stacked import StackedEngine

__all__ = [
    "Compile",
    "EngineName",
    "LocalEngine",
    "Peer",
    "Precision",
    "SequentialEngine",
    "SharedEngine",
    "StackedEngine",
    "make_engine",
]
