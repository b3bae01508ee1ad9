"""The protocol of a round. Start with `round`."""

from fedsat.rounds.attacks import Attack, attacks
from fedsat.rounds.local import LocalTraining, TrainedRound
from fedsat.rounds.round import Engine, Faults, FederationState, RoundResult, Sampling, run_round, start, timed

__all__ = [
    "Attack",
    "Engine",
    "Faults",
    "FederationState",
    "LocalTraining",
    "RoundResult",
    "Sampling",
    "TrainedRound",
    "attacks",
    "run_round",
    "start",
    "timed",
]
