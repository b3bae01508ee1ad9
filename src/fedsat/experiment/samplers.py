"""Which choices of a grid a search tries: all, random ones, or those that Optuna proposes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np

from fedsat.errors import UsageError
from fedsat.seeding import generator

if TYPE_CHECKING:
    import optuna

SamplerName = Literal["grid", "optuna"]
Scores = Mapping[int, float | None]
"""The score of each choice tried so far, by its number in the grid; None if it failed."""

PATIENCE = 20
"""How often in a row Optuna may propose choices that have already been tried."""


class Sampler(Protocol):
    """Proposes choices of a grid by their numbers, each once."""

    def propose(self, scores: Scores) -> Sequence[int]:
        """Return the next choices to try at the same time, or none if all trials are done."""


class GridSampler:
    """The whole grid in its order, or random choices of it if there are fewer trials."""

    def __init__(self, choices: int, trials: int, seed: int) -> None:
        self._chosen = sorted(generator(seed, "trials").permutation(choices)[:trials].tolist())

    def propose(self, scores: Scores) -> Sequence[int]:
        """Return all choices at once, because none depends on a score."""
        return [] if scores else self._chosen


class OptunaSampler:
    """Choices that Optuna's TPE proposes one after another, given the scores so far."""

    def __init__(self, shape: Sequence[int], trials: int, seed: int, higher_is_better: bool) -> None:
        try:
            import optuna  # noqa: PLC0415 (an extra)
        except ImportError as error:
            raise UsageError("sampler optuna needs Optuna; install it with pip install 'fedsat[tune]'") from error
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._study = optuna.create_study(
            direction="maximize" if higher_is_better else "minimize", sampler=optuna.samplers.TPESampler(seed=seed)
        )
        self._shape, self._trials = tuple(shape), trials
        self._open: tuple[optuna.Trial, int] | None = None

    def propose(self, scores: Scores) -> Sequence[int]:
        """Tell Optuna the score of its last proposal, and ask for one that has not been tried."""
        if self._open is not None:
            self._tell(*self._open, scores)
        if len(scores) == self._trials:
            return []
        for _ in range(PATIENCE):
            trial, number = self._ask()
            if number not in scores:
                break
            self._tell(trial, number, scores)
        else:
            untried = next(number for number in range(int(np.prod(self._shape))) if number not in scores)
            places = np.unravel_index(untried, self._shape)
            self._study.enqueue_trial({str(axis): int(place) for axis, place in enumerate(places)})
            trial, number = self._ask()
        self._open = trial, number
        return [number]

    def _ask(self) -> tuple[optuna.Trial, int]:
        trial = self._study.ask()
        places = [trial.suggest_categorical(str(axis), range(size)) for axis, size in enumerate(self._shape)]
        return trial, int(np.ravel_multi_index(places, self._shape))

    def _tell(self, trial: optuna.Trial, number: int, scores: Scores) -> None:
        score = scores[number]
        self._study.tell(trial, score, state=None if score is not None else _failed())


def _failed() -> optuna.trial.TrialState:
    import optuna  # noqa: PLC0415 (an extra)

    return optuna.trial.TrialState.FAIL
