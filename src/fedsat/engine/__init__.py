"""How rounds are carried out. Read `round` first."""

from fedsat.engine.local import LocalTraining, TrainedRound
from fedsat.engine.round import Calls, Engine, Federated, PlayedRound, clocked, play_round, start
from fedsat.engine.sequential import SequentialEngine

__all__ = [
    "Calls",
    "Engine",
    "Federated",
    "LocalTraining",
    "PlayedRound",
    "SequentialEngine",
    "TrainedRound",
    "clocked",
    "play_round",
    "start",
]
