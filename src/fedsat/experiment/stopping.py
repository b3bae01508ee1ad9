"""Built-in callbacks that end a run before its last round: early stopping, and budgets of time and privacy.

They decide from the recorded rounds alone, so a resumed run needs no further state: the rounds without a gain and the
seconds used are in its records, and the number of rounds decides what is spent of the privacy.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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

    def __init__(self, metric: Metric, patience: int, min_gain: float = 0.0) -> None:
        self.metric, self.patience, self.min_gain = metric, patience, min_gain

    def reason(self, records: Sequence[RoundRecord]) -> str | None:
        """Compare the rounds since the best one with the patience, after rounds that were evaluated."""
        best = best_record(records, self.metric, self.min_gain)
        if (
            best is None
            or self.metric.name not in records[-1].metrics
            or records[-1].round - best.round < self.patience
        ):
            return None
        value, name = best.metrics[self.metric.name], self.metric.name
        return f"{name} has not improved for {self.patience} rounds; it was {value:.4g} in round {best.round}"


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


def best_record(records: Iterable[RoundRecord], metric: Metric, min_gain: float = 0.0) -> RoundRecord | None:
    """Return the first record that no later one surpasses by more than `min_gain`; None if the metric has no value."""
    best: RoundRecord | None = None
    sign = 1 if metric.higher_is_better else -1
    for record in records:
        value = record.metrics.get(metric.name)
        if value is not None and (best is None or sign * (value - best.metrics[metric.name]) > min_gain):
            best = record
    return best


def repeated(records: Iterable[RoundRecord]) -> int:
    """Return how often a request to a node can have been repeated in all rounds."""
    return sum(record.repeated or 0 for record in records)


def watched(name: str, own: Iterable[Metric]) -> Metric:
    """Return the metric that the best model is chosen by: that of `early_stop`, or accuracy if it is empty."""
    return judged_by("early_stop", name or "accuracy", own)
