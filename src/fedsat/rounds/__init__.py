"""The protocol of a round. Start with `round`."""

from fedsat.rounds.attacks import Attack, attacks
from fedsat.rounds.local import LocalTraining, TrainedRound
from fedsat.rounds.round import Engine, Faults, FederationState, RoundResult, Sampling, run_round, start, timed
from fedsat.rounds.schedules import LrSchedule, lr_schedules

__all__ = [
    "Attack",
    "Engine",
    "Faults",
    "FederationState",
    "LocalTraining",
    "LrSchedule",
    "RoundResult",
    "Sampling",
    "TrainedRound",
    "attacks",
    "lr_schedules",
    "run_round",
    "start",
    "timed",
]
