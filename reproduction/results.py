"""Result files of studies: one line for each run, with numbers, settings and origin."""

from __future__ import annotations

import csv
import io
import json
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

from fedsat.errors import UsageError
from fedsat.experiment.folder import speaking_of, write_whole
from fedsat.experiment.store import StoredRun, identity
from fedsat.experiment.summary import Evaluated, last_ten
from reproduction.studies import STUDIES, Cell, Study

COLUMNS = (
    "contender",
    "setting",
    "extra",
    "scale",
    "seed",
    "accuracy_last_ten",
    "accuracy_last",
    "accuracy_best",
    "best_round",
    "worst_class_last_ten",
    "lowest_client_last_ten",
    "highest_client_last_ten",
    "recall_last_ten",
    "curve",
    "rounds",
    "seconds",
    "megabytes",
    "algorithm",
    "other_settings",
    "fedsat",
    "torch",
    "device",
    "command",
    "finished",
)
NUMBERS = tuple(column for column in COLUMNS if column.startswith(("accuracy_", "worst_", "lowest_", "highest_")))
POINTS = (1, 2, 5, 10, 20, 30, 40, 50, 75, 100, 150, 200, 250, 300, 350, 400)
"""The rounds whose accuracy is stored, besides the last."""


Key = tuple[str, str, str]
"""A cell's contender, its setting, and the settings that differ from the paper's protocol."""


@dataclass(frozen=True)
class Result:
    """One run of a cell: a line of a results file. Numbers are in per cent."""

    line: dict[str, str]

    @property
    def key(self) -> Key:
        """The cell of the study."""
        return self.line["contender"], self.line["setting"], self.line["extra"]

    @property
    def experiment(self) -> str:
        """The experiment without the seed, computed from the settings, so that options added later do not matter."""
        table = {**json.loads(self.line["other_settings"]), "algorithm": json.loads(self.line["algorithm"])}
        return identity(table, without=("seed",))

    @property
    def seed(self) -> int:
        """The run's seed."""
        return int(self.line["seed"])

    def number(self, column: str) -> float:
        """Return a column's value."""
        return float(self.line[column])

    @property
    def recall(self) -> list[float]:
        """Recall of each class, mean of the last ten rounds; NaN for a class that the test set lacks."""
        return [float(text) for text in self.line["recall_last_ten"].split()]

    @property
    def curve(self) -> dict[int, float]:
        """Accuracy at some rounds."""
        pairs = (point.split(":") for point in self.line["curve"].split())
        return {int(number): float(accuracy) for number, accuracy in pairs}


Kept = Mapping[tuple[str, str], Sequence[Result]]
"""Results by study and scale."""


def results_of(cell: Cell, extra: str, scale: str, run: StoredRun) -> list[Result]:
    """Return the line of a finished run, and one for every other model that its method reports."""
    table, made = run.table, run.stored.get("made_with", {})
    others = {key: value for key, value in table.items() if key not in ("algorithm", "seed")}
    about = {
        "setting": cell.where,
        "extra": extra,
        "scale": scale,
        "seed": run.seed,
        "rounds": len(run.records),
        "seconds": f"{run.summary['seconds']:.1f}",
        "megabytes": f"{(run.summary['bytes_down'] + run.summary['bytes_up']) / 1e6:.0f}",
        "algorithm": json.dumps(table["algorithm"], ensure_ascii=False),
        "other_settings": json.dumps(others, ensure_ascii=False),
        **{key: made.get(key) or "" for key in ("fedsat", "torch", "device", "finished")},
        "command": without_places(made.get("command") or ""),
    }
    evaluated = [(record.round, record.metrics) for record in run.evaluated]
    found = [{"contender": cell.contender, **_numbers(run.summary, evaluated, len(run.records))}]
    for name, summary in run.summary.get("models", {}).items():
        evaluated = [(record.round, record.models[name]) for record in run.evaluated]
        found.append({"contender": f"{cell.contender}, {name}", **_numbers(summary, evaluated, len(run.records))})
    return [Result({key: str(value) for key, value in (numbers | about).items()}) for numbers in found]


def without_places(command: str) -> str:
    """Return a command without the folders of the machine that ran it."""
    words, kept = iter(shlex.split(command)), list[str]()
    for word in words:
        option, equals, _ = word.partition("=")
        if option not in ("--out", "--results", "--tuned"):
            kept.append(word)
        elif not equals:
            next(words, None)
    return shlex.join(kept)


def _numbers(summary: Mapping[str, Any], evaluated: Evaluated, rounds: int) -> dict[str, Any]:
    """Return the results of one model."""
    recalls = [metrics["recall"] for metrics in last_ten(evaluated, rounds)]
    recall = np.array(recalls, dtype=np.float64).mean(axis=0)
    kept = {*POINTS, evaluated[-1][0]}
    ten = summary["last_ten"]
    return {
        "accuracy_last_ten": _percent(ten["accuracy"]),
        "accuracy_last": _percent(summary["accuracy"]),
        "accuracy_best": _percent(summary["best"]["accuracy"]),
        "best_round": summary["best"]["round"],
        "worst_class_last_ten": _percent(ten["worst_class_recall"]),
        "lowest_client_last_ten": _percent(ten["worst_client_accuracy"]),
        "highest_client_last_ten": _percent(ten["client_accuracy_max"]),
        "recall_last_ten": " ".join(map(_percent, recall)),
        "curve": " ".join(f"{number}:{_percent(m['accuracy'])}" for number, m in evaluated if number in kept),
    }


def _percent(share: float) -> str:
    return f"{100 * share:.2f}"


def results_file(folder: Path, study: Study, scale: str) -> Path:
    """Return the path of the results of a study at a scale."""
    return folder / f"{study.name}-{scale}.csv"


def read_results(path: Path) -> list[Result]:
    """Return the results in a file; none if there is no file."""
    if not path.is_file():
        return []
    try:
        lines = list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"cannot read the results in {path}: {error}") from error
    return [_checked(path, number, line) for number, line in enumerate(lines, start=2)]


def _checked(path: Path, number: int, line: Mapping[str, str]) -> Result:
    """Parse a line of a file completely, so that damage is reported now and not after hours of training."""
    missing = [column for column in COLUMNS if line.get(column) is None]
    if missing:
        raise UsageError(f"{path} line {number} has no {missing[0]}; it is not a results file")
    result = Result({column: line[column] for column in COLUMNS})
    try:
        _ = result.seed, result.recall, result.curve, result.experiment, *map(result.number, NUMBERS)
    except (ValueError, TypeError, AttributeError) as error:
        raise UsageError(f"{path} line {number} is damaged: {error}") from error
    return result


def read_all(folder: Path) -> dict[tuple[str, str], list[Result]]:
    """Return all results in a folder, by study and scale; smoke runs are left out."""
    return {
        (study.name, scale): results
        for study in STUDIES.values()
        for scale in ("full", "short")
        if (results := read_results(results_file(folder, study, scale)))
    }


def add_results(path: Path, new: Iterable[Result]) -> list[Result]:
    """Add results to a file, which several processes may do at once. Results of other cells and seeds are kept.

    Without any results, this checks that the file can be written.

    If a cell has seeds with another configuration, for example with earlier defaults, they are removed: a mean over
    both would be meaningless.
    """
    added = list(new)
    current = {result.key: result.experiment for result in added}
    with _alone(path):
        old = [r for r in read_results(path) if r.key not in current or current[r.key] == r.experiment]
        kept = {(*result.key, result.seed): result for result in (*old, *added)}
        if added:
            with speaking_of(path):
                write_whole(path, _text(sorted(kept.values(), key=_row)).encode())
    return list(kept.values())


def _row(result: Result) -> tuple[str, str, str, int]:
    """Return the sort key of a run, so that the order of lines does not depend on which run ended first."""
    contender, setting, extra = result.key
    return setting, extra, contender, result.seed


def _text(results: Iterable[Result]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(result.line for result in results)
    return text.getvalue()


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Lock a results file while it is read and written."""
    with ExitStack() as held:
        with speaking_of(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            held.enter_context(FileLock(path.parent / f".{path.name}.lock"))
        yield


def by_cell(results: Sequence[Result]) -> dict[Key, list[Result]]:
    """Group results by cell, sorted by seed."""
    found: dict[Key, list[Result]] = {}
    for result in sorted(results, key=lambda result: result.seed):
        found.setdefault(result.key, []).append(result)
    return found


def made_with(results: Sequence[Result]) -> dict[str, list[Any]]:
    """Return the distinct seeds, versions, devices and commands of results."""
    columns = ("seed", "rounds", "fedsat", "torch", "device", "command")
    return {column: sorted({result.line[column] for result in results} - {""}) for column in columns}
