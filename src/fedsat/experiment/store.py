"""Runs on disk, found again: what a folder holds, which runs are the same, and where the next one goes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Container, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from fedsat.errors import UsageError
from fedsat.experiment.checkpoint import checkpointed_rounds
from fedsat.experiment.config import Config, complete, read
from fedsat.experiment.folder import CONFIG, RECORDS, SUMMARY, free_folder, read_records, read_summary
from fedsat.experiment.summary import summarise
from fedsat.metrics import METRICS, Metric, RoundRecord

ONLY_HOW = ("engine", "device", "checkpoint_every")
"""Settings that say how a run is computed and not what: they change the last digits and the time, nothing else."""


def identity(table: Mapping[str, Any], *, without: tuple[str, ...] = ()) -> str:
    """A short text that two runs share if, and only if, they are the same experiment.

    Everything that enters the mathematics or the measures counts: data, partition, model, method with every
    option, protocol, precision and seed. What is `ONLY_HOW` does not.
    """
    kept = {key: value for key, value in completed(table).items() if key not in (*ONLY_HOW, *without)}
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:12]


def _comparable(table: Mapping[str, Any]) -> dict[str, Any]:
    """All of a configuration that a run must share to be gone on with."""
    return {key: value for key, value in completed(table).items() if key != "checkpoint_every"}


def completed(table: Mapping[str, Any]) -> Mapping[str, Any]:
    """`table` with options that were added since it was written; as it is if its own classes are not at hand."""
    try:
        return complete(table)
    except UsageError:
        return table


@dataclass(frozen=True)
class StoredRun:
    """A run as its folder tells it, finished or not. Its larger files are read when they are asked for."""

    folder: Path
    table: dict[str, Any]
    """The configuration as nested plain values."""

    @staticmethod
    def read(folder: Path) -> StoredRun:
        """The run in `folder`."""
        if not (folder / CONFIG).is_file():
            raise UsageError(f"{folder} holds no run: it has no {CONFIG}")
        table = read(folder / CONFIG)
        method = table.get("algorithm")
        if not isinstance(method, dict) or "name" not in method or not isinstance(table.get("seed", 0), int):
            raise UsageError(f"{folder / CONFIG} is not the configuration of a run")
        return StoredRun(folder, table)

    @cached_property
    def records(self) -> list[RoundRecord]:
        """The rounds recorded."""
        return read_records(self.folder)

    @cached_property
    def stored(self) -> dict[str, Any]:
        """What `summary.json` holds; empty while the run goes on or when it was killed."""
        return read_summary(self.folder)

    @cached_property
    def summary(self) -> dict[str, Any]:
        """The numbers to quote, from the rounds recorded, and what `summary.json` adds to them."""
        try:
            return {**self.stored, **summarise(self.records)}
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UsageError(f"{self.folder / RECORDS} is damaged: a round lacks what rounds record") from error

    @property
    def method(self) -> str:
        """The method's name, as the run wrote it down."""
        return str(self.stored.get("method") or self.table["algorithm"]["name"])

    @property
    def seed(self) -> int:
        """The run's seed."""
        return int(self.table.get("seed", 0))

    @property
    def evaluated(self) -> list[RoundRecord]:
        """The rounds with test results."""
        return [record for record in self.records if record.evaluated]

    @cached_property
    def own_metrics(self) -> list[Metric]:
        """The user's own metrics that the run recorded, and what callbacks added, as `summary.json` describes them."""
        told = {each["name"]: each for each in self.stored.get("metrics", ())}
        values = self.evaluated[-1].metrics if self.evaluated else {}
        names = [name for name, value in values.items() if name not in METRICS and isinstance(value, int | float)]
        plain = {"unit": ""}
        return [Metric(**{"name": name, "label": name, **plain, **told.get(name, {})}, compared=True) for name in names]

    @property
    def ended_early(self) -> bool:
        """Whether the run has fewer rounds than its configuration, and not because a callback stopped it."""
        return len(self.records) < self.table["rounds"] and "stopped" not in self.stored


class Shelf:
    """A folder of runs in which one is found by its configuration.

    A run that was interrupted or failed can be taken up if it left a checkpoint. Without one it is never touched: the
    same configuration gets a fresh folder beside it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._finished = {identity(read(path / CONFIG)): path for path in _finished_runs(folder)}

    def find(self, config: Config) -> StoredRun | None:
        """The finished run of `config`, if there is one."""
        path = self._finished.get(identity(config.table()))
        return StoredRun.read(path) if path is not None else None

    def unfinished(self, config: Config) -> Path | None:
        """The folder of a run of exactly `config` that did not come to its end and left a checkpoint."""
        wanted = _comparable(config.table())
        for path in sorted(child for child in self.folder.glob("*") if (child / CONFIG).is_file()):
            waiting = checkpointed_rounds(path) and read_summary(path).get("status") != "completed"
            if waiting and _comparable(read(path / CONFIG)) == wanted:
                return path
        return None

    def place(self, name: str, promised: Container[Path] = ()) -> Path:
        """A folder for a run to be called `name`; one that holds no run yet, nor is promised to another."""
        return free_folder(self.folder, file_name(name), promised)

    def add(self, path: Path) -> StoredRun:
        """Take note of the finished run in `path`, one of this folder's."""
        run = StoredRun.read(path)
        self._finished[identity(run.table)] = path
        return run


def _finished_runs(folder: Path) -> list[Path]:
    """The folders inside `folder` whose run has come to its end."""
    candidates = sorted(path.parent for path in folder.glob(f"*/{SUMMARY}") if (path.parent / CONFIG).is_file())
    return [path for path in candidates if read_summary(path).get("status") == "completed"]


def file_name(text: str) -> str:
    """`text` as the name of a file or folder on any system."""
    return "".join(sign if sign.isalnum() or sign in "-_.+=," else "." for sign in text)
