"""The result of a search for settings: its trials, and the best configuration of each method."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from fedsat.experiment.config import Config
from fedsat.experiment.folder import speaking_of, write_whole
from fedsat.experiment.store import file_name
from fedsat.experiment.tuning import Trial
from fedsat.metrics import Metric
from fedsat.report.comparison import ComparisonTable, format_value, mean, std
from fedsat.report.page import html_table

TRIALS, BEST = "tuning.csv", "best"


@dataclass(repr=False)
class Tuning:
    """The trials of a search: as a table, as files, and the best configuration of each method."""

    trials: Sequence[Trial]
    metric: Metric
    """The metric by which settings are chosen."""
    failures: Mapping[str, str] = field(default_factory=dict)
    """The runs that failed, with their errors."""

    @cached_property
    def chosen(self) -> dict[str, Trial]:
        """The best trial of each method; of equal ones, the first. A method whose trials all failed has none."""
        best: dict[str, Trial] = {}
        for trial in self.trials:
            if trial.score is not None and (trial.method not in best or self._better(trial, best[trial.method])):
                best[trial.method] = trial
        return best

    def _better(self, one: Trial, other: Trial) -> bool:
        sign = 1 if self.metric.higher_is_better else -1
        return sign * (one.score or 0.0) > sign * (other.score or 0.0)

    @property
    def best(self) -> dict[str, Config]:
        """The best configuration of each method, without a holdout: to be trained on all training data."""
        return {method: replace(trial.config, holdout=0.0) for method, trial in self.chosen.items()}

    @cached_property
    def settings(self) -> list[str]:
        """The settings that were tried."""
        return list(dict.fromkeys(key for trial in self.trials for key, _ in trial.choice))

    @cached_property
    def table(self) -> ComparisonTable:
        """The trials as text; the best score of each method is marked."""
        rows = []
        for trial in self.trials:
            tried = dict(trial.choice)
            best = self.chosen.get(trial.method) is trial
            score = "failed" if trial.error is not None else format_value(trial.scores, self.metric)
            cells = [(str(tried.get(key, "")), "") for key in self.settings]
            rows.append([(trial.method, ""), *cells, (score, "best" if best else ""), (f"{trial.seconds:.1f}", "")])
        return ComparisonTable(["", *self.settings, self.metric.heading, "s"], rows, self._legend(), [])

    def _legend(self) -> str:
        config = self.trials[0].config
        each = sum(trial.method == self.trials[0].method for trial in self.trials)
        label = self.metric.label[0].upper() + self.metric.label[1:]
        return (
            f"{label}: mean of the last ten rounds on {100 * config.holdout:g} % of the training data, which are held "
            f"out; the best of each method is bold. {each} trials for each method. The test set was not used."
        )

    def __repr__(self) -> str:
        cells = [
            self.table.headings,
            *([text + "*" * (mark == "best") for text, mark in row] for row in self.table.rows),
        ]
        widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
        lines = [
            "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in cells
        ]
        return "\n".join([*lines, self.table.legend.replace("is bold", "has a *")])

    def _repr_html_(self) -> str:
        return html_table(self.table, self.table.legend)

    def rows(self) -> list[dict[str, Any]]:
        """Return one row for each trial: method, settings, the metric over seeds, and whether it was chosen."""
        name = self.metric.name
        return [
            {
                "method": trial.method,
                **{key: dict(trial.choice).get(key, "") for key in self.settings},
                f"{name}_mean": mean(trial.scores) if trial.error is None else "",
                f"{name}_std": noise if (noise := std(trial.scores)) is not None else "",
                "seeds": len(trial.scores),
                "seconds": round(trial.seconds, 3),
                "chosen": self.chosen.get(trial.method) is trial,
                "error": trial.error or "",
            }
            for trial in self.trials
        ]

    def write(self, folder: str | Path) -> dict[str, Path]:
        """Write `tuning.csv` and `best/METHOD.toml` for each method to `folder`; return the latter by method."""
        folder, file, rows = Path(folder), io.StringIO(), self.rows()
        writer = csv.DictWriter(file, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        found = {}
        with speaking_of(folder):
            (folder / BEST).mkdir(parents=True, exist_ok=True)
            write_whole(folder / TRIALS, file.getvalue().encode())
            for method, config in self.best.items():
                found[method] = folder / BEST / f"{file_name(method)}.toml"
                write_whole(found[method], (self._header(method) + config.to_toml()).encode())
        return found

    def _header(self, method: str) -> str:
        """Return a comment that says how a configuration was chosen."""
        trial = self.chosen[method]
        each = sum(other.method == method for other in self.trials)
        score = self.metric.written(mean(trial.scores))
        return (
            f"# Chosen of {each} trials by {self.metric.name}, {score} {self.metric.unit}".rstrip()
            + f" on the {100 * trial.config.holdout:g} % of the training data that were held out.\n"
        )
