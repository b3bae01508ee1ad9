"""Learning-rate schedules: the local rate η_t of round t, the same for all of the round's steps.

All of them can begin with a linear warm-up: in the first W rounds, the rate is η t/(W + 1). Then the schedule starts
at η.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

from fedsat.options import Option, check
from fedsat.registry import Registry


@dataclass(frozen=True)
class LrSchedule:
    """The same rate in every round."""

    warmup: Annotated[int, Option("W, first rounds in which the rate grows linearly", at_least=0)] = 0

    spans_run: ClassVar[bool] = False
    """Whether the rates depend on the number of rounds, which then cannot change when a run is resumed."""

    def __post_init__(self) -> None:
        check(self, "lr_schedule")

    @property
    def constant(self) -> bool:
        """Whether all rounds have the same rate."""
        return type(self) is LrSchedule and not self.warmup

    def factor(self, round_number: int, rounds: int) -> float:
        """Return η_t/η for a round, counted from 1, of a run with `rounds` rounds."""
        if round_number <= self.warmup:
            return round_number / (self.warmup + 1)
        return self.decayed(round_number - self.warmup - 1, rounds - self.warmup)

    def decayed(self, passed: int, rounds: int) -> float:
        """Return η_t/η when `passed` of the `rounds` rounds after the warm-up are over."""
        del passed, rounds
        return 1.0


lr_schedules: Registry[LrSchedule] = Registry("lr_schedule", LrSchedule, "schedules")
lr_schedules.register("constant")(LrSchedule)


@lr_schedules.register("exponential")
@dataclass(frozen=True)
class Exponential(LrSchedule):
    """The rate is multiplied by the same factor after every round."""

    decay: Annotated[float, Option("factor on the rate after each round", above=0, at_most=1)] = 0.998

    def decayed(self, passed: int, rounds: int) -> float:
        """Return decay^passed."""
        del rounds
        return self.decay**passed


@lr_schedules.register("step")
@dataclass(frozen=True)
class Step(LrSchedule):
    """The rate is multiplied by a factor once every few rounds."""

    decay: Annotated[float, Option("factor on the rate", above=0, at_most=1)] = 0.1
    every: Annotated[int, Option("rounds between two decays", at_least=1)] = 50

    def decayed(self, passed: int, rounds: int) -> float:
        """Return decay^⌊passed/every⌋."""
        del rounds
        return self.decay ** (passed // self.every)


@lr_schedules.register("cosine")
@dataclass(frozen=True)
class Cosine(LrSchedule):
    """The rate falls along half a cosine over all rounds of the run."""

    lowest: Annotated[float, Option("share of the rate at which the cosine ends", at_least=0, below=1)] = 0.0

    spans_run: ClassVar[bool] = True

    def decayed(self, passed: int, rounds: int) -> float:
        """Return lowest + (1 − lowest) (1 + cos(π passed/rounds))/2, which is above 0 in every round."""
        return self.lowest + (1 - self.lowest) * (1 + math.cos(math.pi * passed / rounds)) / 2
