"""How rounds are carried out. Read `round` first."""

from fedsat.engine.choose import EngineName, Precision, make_engine
from fedsat.engine.local import LocalTraining, TrainedRound
from fedsat.engine.round import Calls, Engine, Federated, PlayedRound, clocked, play_round, start
from fedsat.engine.sequential import SequentialEngine
from fedsat.engine.stacked import StackedEngine

__all__ = [
    "Calls",
    "Engine",
    "EngineName",
    "Federated",
    "LocalTraining",
    "PlayedRound",
    "Precision",
    "SequentialEngine",
    "StackedEngine",
    "TrainedRound",
    "clocked",
    "make_engine",
    "play_round",
    "start",
]
