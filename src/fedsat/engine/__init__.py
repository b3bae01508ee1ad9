"""How rounds are carried out. Read `round` first."""

from fedsat.engine.attacks import Attack, attacks
from fedsat.engine.choose import EngineName, Precision, make_engine
from fedsat.engine.local import LocalTraining, TrainedRound
from fedsat.engine.round import Adversity, Calls, Engine, Federated, PlayedRound, clocked, play_round, start
from fedsat.engine.sequential import SequentialEngine
from fedsat.engine.stacked import StackedEngine

__all__ = [
    "Adversity",
    "Attack",
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
    "attacks",
    "clocked",
    "make_engine",
    "play_round",
    "start",
]
