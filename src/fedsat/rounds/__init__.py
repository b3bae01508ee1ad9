"""The protocol of a round. Start with `round`."""

from fedsat.rounds.attacks import Attack, attacks
from fedsat.rounds.local import LocalTraining, TrainedRound
from fedsat.rounds.privacy import Privacy, Protection, privacies
from fedsat.rounds.round import Engine, Faults, FederationState, RoundResult, Sampling, run_round, start, timed
from fedsat.rounds.schedules import LrSchedule, lr_schedules

__all__ = [
    "Attack",
    "Engine",
    "Faults",
    "FederationState",
    "LocalTraining",
    "LrSchedule",
    "Privacy",
    "Protection",
    "RoundResult",
    "Sampling",
    "TrainedRound",
    "attacks",
    "lr_schedules",
    "privacies",
    "run_round",
    "start",
    "timed",
]
