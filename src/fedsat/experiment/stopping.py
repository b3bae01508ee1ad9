"""Built-in callbacks that end a run before its last round: early stopping, and budgets of time and privacy.

They decide from the recorded rounds alone, so a resumed run needs no further state: the rounds without a gain and the
seconds used are in its records, and the number of rounds determines the privacy spent.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedsat.errors import UsageError
from fedsat.experiment.callbacks import Callback
from fedsat.metrics import Metric, RoundRecord, judged_by
from fedsat.rounds.ledger import Budget, Ledger

if TYPE_CHECKING:
    from fedsat.experiment.run import Run


class StopRule(Callback):
    """Base of callbacks that check the records at the start and after each round, and may stop the run."""

    def start(self, run: Run) -> None:
        """Stop a run that was interrupted after its last round."""
        self.check(run)

    def round(self, run: Run, record: RoundRecord) -> None:
        """Stop the run if it should end."""
        del record
        self.check(run)

    def check(self, run: Run) -> None:
        """Call `run.stop` with the reason if the run should end."""
        if (reason := self.reason(run.records)) is not None:
            run.stop(reason)

    def reason(self, records: Sequence[RoundRecord]) -> str | None:
        """Return why a run with these records ends, or None if it continues."""
        raise NotImplementedError


class EarlyStopping(StopRule):
    """Ends a run when a metric has not improved by more than `min_gain` for `patience` rounds."""

    def __init__(self, criterion: Criterion, patience: int, min_gain: float = 0.0) -> None:
        self.criterion, self.patience, self.min_gain = criterion, patience, min_gain

    def reason(self, records: Sequence[RoundRecord]) -> str | None:
        """Compare the rounds since the best one with the patience, after rounds that were evaluated."""
        best = best_record(records, self.criterion, self.min_gain)
        if best is None or not records[-1].evaluated or records[-1].round - best.round < self.patience:
            return None
        value = self.criterion.value(best)
        return f"{self.criterion} has not improved for {self.patience} rounds; it was {value:.4g} in round {best.round}"


class TimeBudget(StopRule):
    """Ends a run when its rounds have taken this many minutes, as recorded in their `seconds`."""

    def __init__(self, minutes: float) -> None:
        self.minutes = minutes

    def reason(self, records: Sequence[RoundRecord]) -> str | None:
        """Compare the seconds of all rounds with the budget."""
        spent = sum(sum(record.seconds.values()) for record in records)
        return f"the budget of {self.minutes:g} minutes is used up" if spent >= 60 * self.minutes else None


class PrivacyBudget(StopRule):
    """Ends a run before the round that would spend more than the budget of differential privacy."""

    def __init__(self, ledger: Ledger, budget: Budget) -> None:
        self.ledger, self.budget = ledger, budget

    def start(self, run: Run) -> None:
        """Refuse a budget that is smaller than the cost of the first round."""
        if not run.records and (cost := self.ledger.epsilon(1)) > self.budget.epsilon:
            raise UsageError(
                f"budget is ε = {self.budget.epsilon:g}, but the first round costs {cost:.3g}; use more --dp-noise"
            )
        super().start(run)

    def reason(self, records: Sequence[RoundRecord]) -> str | None:
        """Compare the cost of all rounds including the next one with the budget."""
        again = repeated(records)
        spent, ahead = (self.ledger.epsilon(rounds, again) for rounds in (len(records), len(records) + 1))
        if ahead <= self.budget.epsilon:
            return None
        return f"the privacy budget allows no further round; ε = {spent:.3g} of {self.budget.epsilon:g} is spent"


TEST = "test:"
"""The prefix of metrics on the test set, in `select` and `early_stop`."""
USUAL = "balanced_accuracy"
"""The metric by which the best model is chosen by default."""


@dataclass(frozen=True)
class Criterion:
    """The metric by which models are judged, on the clients' validation samples or on the test set."""

    metric: Metric
    on_test: bool = False

    @classmethod
    def of(cls, setting: str, text: str, own: Iterable[Metric]) -> Criterion:
        """Return the criterion in a setting: the name of a metric, on the test set if it begins with `test:`."""
        return cls(judged_by(setting, text.removeprefix(TEST), own), text.startswith(TEST))

    def __str__(self) -> str:
        return TEST * self.on_test + self.metric.name

    def value(self, record: RoundRecord) -> float | None:
        """Return the metric's value after a round; None if it was not computed, or is undefined."""
        found: float | None = (record.metrics if self.on_test else record.validation).get(self.metric.name)
        return found


def best_record(records: Iterable[RoundRecord], criterion: Criterion, min_gain: float = 0.0) -> RoundRecord | None:
    """Return the first record that no later one surpasses by more than `min_gain`; None if the metric has no value."""
    best: RoundRecord | None = None
    reached = 0.0
    sign = 1 if criterion.metric.higher_is_better else -1
    for record in records:
        value = criterion.value(record)
        if value is not None and (best is None or sign * (value - reached) > min_gain):
            best, reached = record, value
    return best


def repeated(records: Iterable[RoundRecord]) -> int:
    """Return how often requests to a node may have been repeated in all rounds together."""
    return sum(record.repeated or 0 for record in records)
