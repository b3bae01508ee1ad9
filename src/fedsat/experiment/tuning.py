"""Search for good settings of each method, by results on samples that are held out of the training data.

The test set is not used, and every method has the same number of trials. A trial is one choice of the grid, trained
with every seed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

from fedsat.errors import UsageError, unknown
from fedsat.experiment.batch import Display, Outcome, carry_out
from fedsat.experiment.config import DATA, Config
from fedsat.experiment.jobs import Choice, Contender, Job
from fedsat.experiment.samplers import GridSampler, OptunaSampler, Sampler, SamplerName
from fedsat.experiment.settings import full_name
from fedsat.experiment.store import Shelf
from fedsat.metrics import Metric, find_metrics, judged_by

HOLDOUT = 0.2
"""The share of the training data that is held out, unless the user gives another one."""


@dataclass(frozen=True)
class Trial:
    """One choice of a method's settings, and how well it did."""

    method: str
    choice: Choice
    config: Config
    """The configuration of its first seed."""
    scores: Mapping[int, float]
    """The metric by seed: mean of the last ten rounds, on the samples held out. Seeds that failed are missing."""
    seconds: float
    """Seconds of training, for all seeds."""
    error: str | None = None
    """Why it failed, if it did; then it cannot be chosen."""

    @property
    def score(self) -> float | None:
        """The mean over seeds, or None if the trial failed."""
        return None if self.error is not None else sum(self.scores.values()) / len(self.scores)


@dataclass(frozen=True)
class Search:
    """A search over the grids of some methods."""

    contenders: Sequence[Contender]
    metric: Metric
    trials: int
    """The number of trials of each method."""
    sampler: str

    @staticmethod
    def of(contenders: Sequence[Contender], metric: str, trials: int | None, sampler: str) -> Search:
        """Check a search. By default, `trials` is the size of the smallest grid."""
        if sampler not in get_args(SamplerName):
            raise unknown("sampler", sampler, get_args(SamplerName))
        for contender in contenders:
            _check_grid(contender)
        return Search(contenders, _find_metric(metric, contenders), _count_trials(contenders, trials), sampler)

    def run(self, display: Display, shelf: Shelf, processes: int = 1) -> tuple[list[Trial], Outcome]:
        """Return the trials by method, in the order of the grid; runs that are on the shelf are not repeated."""
        tried: list[dict[int, Trial]] = [{} for _ in self.contenders]
        samplers, total = [self._sampler(contender) for contender in self.contenders], Outcome()
        for contender in self.contenders:
            if self.trials < (there := len(contender.choices)):
                display.say(
                    f"{contender.method} tries {self.trials} of its {there} choices, as many as the other methods"
                )
        while True:
            scores = [{number: trial.score for number, trial in done.items()} for done in tried]
            asked = [
                (contender, done, number, contender.jobs(contender.choices[number]))
                for contender, done, sampler, known in zip(self.contenders, tried, samplers, scores, strict=True)
                for number in sampler.propose(known)
            ]
            if not asked:
                return [done[number] for done in tried for number in sorted(done)], total
            outcome = carry_out(display, [job for *_, jobs in asked for job in jobs], shelf, processes)
            total.runs += outcome.runs
            total.failures |= outcome.failures
            for contender, done, number, jobs in asked:
                done[number] = self._trial(contender, contender.choices[number], jobs, shelf, outcome)

    def _sampler(self, contender: Contender) -> Sampler:
        seed = contender.table["seed"]
        if self.sampler == "grid":
            return GridSampler(len(contender.choices), self.trials, seed)
        shape = [len(values) for values in contender.grid.values()]
        return OptunaSampler(shape, self.trials, seed, self.metric.higher_is_better)

    def _trial(
        self, contender: Contender, choice: Choice, jobs: Sequence[Job], shelf: Shelf, outcome: Outcome
    ) -> Trial:
        errors = [outcome.failures[job.label] for job in jobs if job.label in outcome.failures]
        runs = [run for job in jobs if (run := shelf.find(job.config)) is not None]
        means = {run.seed: run.summary.get("last_ten", {}).get(self.metric.name) for run in runs}
        scores = {seed: float(value) for seed, value in means.items() if value is not None}
        if len(scores) < len(runs):
            errors.append(f"{self.metric.name} is not defined on the samples held out")
        seconds = sum(float(run.summary["seconds"]) for run in runs)
        return Trial(contender.method, choice, jobs[0].config, scores, seconds, errors[0] if errors else None)


def _check_grid(contender: Contender) -> None:
    """Check that the choices differ, and that samples are held out, the same for all choices."""
    if not contender.table["holdout"]:
        raise UsageError(f"holdout is 0; a search needs samples to choose by, such as holdout = {HOLDOUT}")
    for key, values in contender.grid.items():
        twice = [value for place, value in enumerate(values) if value in list(values)[:place]]
        if twice:
            raise UsageError(f"the grid has {key}={twice[0]} twice")
        if full_name(contender.table, key) in DATA:
            raise UsageError(f"{key} cannot be in the grid: choices are compared on the same data")


def _count_trials(contenders: Sequence[Contender], trials: int | None) -> int:
    """Return the number of trials that every method has."""
    smallest = min(contenders, key=lambda contender: len(contender.choices))
    most = len(smallest.choices)
    if most == 1:
        raise UsageError(
            f"the grid gives {smallest.method} nothing to choose from, and every method has the same number of trials;"
            " give values of a setting that it has, such as --grid lr=0.01,0.03"
        )
    if trials is not None and not 1 <= trials <= most:
        raise UsageError(f"trials is {trials}; it must be from 1 to {most}, the choices of {smallest.method}")
    return trials or most


def _find_metric(name: str, contenders: Sequence[Contender]) -> Metric:
    return judged_by("metric", name, find_metrics(contenders[0].table.get("metrics", ())))
