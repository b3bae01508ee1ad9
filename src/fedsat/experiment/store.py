"""Runs on disk: reading them, recognising equal ones, and choosing folders for new ones."""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Container, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from fedsat.errors import UsageError
from fedsat.experiment.checkpoint import checkpointed_rounds
from fedsat.experiment.config import Config, complete, read
from fedsat.experiment.export import Target, export
from fedsat.experiment.folder import (
    CONFIG,
    COUNTS,
    RECORDS,
    RECORDS_SHA256,
    SUMMARY,
    free_folder,
    read_records,
    read_summary,
    records_sha256,
)
from fedsat.experiment.predictor import Prediction, Predictor
from fedsat.experiment.saved import model_path, read_weights, served
from fedsat.experiment.summary import summarise
from fedsat.metrics import CHOICES, METRICS, Evaluation, Metric, RoundRecord, is_imbalanced
from fedsat.metrics.thresholds import Sensitivity

BESIDE = ("checkpoint_every", "state_memory", "track")
"""Settings that affect no number: what is written, sent to trackers, or kept on disk."""

ONLY_HOW = ("engine", "compile", "device", *BESIDE)
"""Settings that affect at most the last digits."""


def identity(table: Mapping[str, Any], *, without: tuple[str, ...] = ()) -> str:
    """Return a short text that is equal for two runs if and only if they are the same experiment.

    It depends on everything that affects the training or the metrics: data, partition, model, method with all options,
    protocol, precision and seed.
    """
    kept = {key: value for key, value in completed(table).items() if key not in (*ONLY_HOW, *without)}
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:12]


def _comparable(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a configuration that must be equal for a run to be resumed."""
    return {key: value for key, value in completed(table).items() if key not in BESIDE}


def completed(table: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the table with options that newer versions added; unchanged if its classes cannot be imported."""
    try:
        return complete(table)
    except UsageError:
        return table


@dataclass(frozen=True)
class StoredRun:
    """A run as stored in its folder, finished or not. Larger files are read on first use."""

    folder: Path
    table: dict[str, Any]
    """The configuration as nested plain values."""

    @staticmethod
    def read(folder: Path) -> StoredRun:
        """Open the run in `folder`."""
        if not (folder / CONFIG).is_file():
            raise UsageError(f"{folder} contains no run: it has no {CONFIG}")
        table = read(folder / CONFIG)
        method = table.get("algorithm")
        if not isinstance(method, dict) or "name" not in method or not isinstance(table.get("seed", 0), int):
            raise UsageError(f"{folder / CONFIG} is not the configuration of a run")
        return StoredRun(folder, table)

    @cached_property
    def records(self) -> list[RoundRecord]:
        """The recorded rounds; those of a run that has ended must be unchanged."""
        wanted = self.stored.get(RECORDS_SHA256)
        if wanted is not None and records_sha256(self.folder) != wanted:
            raise UsageError(f"{self.folder / RECORDS} has changed since the run ended; repeat the run, or restore it")
        return read_records(self.folder)

    @cached_property
    def stored(self) -> dict[str, Any]:
        """The contents of `summary.json`; empty while the run is in progress, or if it was killed."""
        return read_summary(self.folder)

    @cached_property
    def summary(self) -> dict[str, Any]:
        """The main results, computed from the recorded rounds, and the contents of `summary.json`."""
        try:
            return {**self.stored, **summarise(self.records)}
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UsageError(f"{self.folder / RECORDS} is damaged: a round is incomplete") from error

    def model(self, name: str = "last") -> dict[str, Tensor]:
        """Return the parameters and buffers of the model `last`, `best` or `averaged`."""
        return read_weights(model_path(self.folder, name))

    def predictor(self, model: str | None = None) -> Predictor:
        """Return the model `last`, `best` or `averaged`, ready to predict.

        By default, it is the best model if the run has chosen one (`--select`), and otherwise the last.
        """
        return Predictor(model_path(self.folder, model or served(self.folder)))

    def predict(self, x: Any, *, model: str | None = None, sensitivity: Sensitivity | None = None) -> Prediction:
        """Predict the classes of new samples; see `predictor` and `Predictor.predict`."""
        return self.predictor(model).predict(x, sensitivity=sensitivity)

    def evaluate(
        self, x: Any, y: ArrayLike | None = None, *, model: str | None = None, sensitivity: Sensitivity | None = None
    ) -> Evaluation:
        """Evaluate a model on new samples; see `predictor` and `Predictor.evaluate`."""
        return self.predictor(model).evaluate(x, y, sensitivity=sensitivity)

    def export(self, path: str | Path, *, to: Target = "onnx", model: str | None = None) -> Path:
        """Write a model with its preprocessing to one file that needs only onnxruntime (`onnx`) or torch (`torch`).

        The file's probabilities are compared with those of the saved model.
        """
        return export(self.predictor(model), Path(path), to)

    @property
    def method(self) -> str:
        """The method's name."""
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
        """Chosen metrics, your own ones, and what callbacks added, as `summary.json` describes them."""
        described = {each["name"]: each for each in self.stored.get("metrics", ())}
        values = self.evaluated[-1].metrics if self.evaluated else {}
        names = [name for name, value in values.items() if name not in METRICS and isinstance(value, int | float)]
        plain = {"unit": ""}
        return [
            CHOICES.get(name)
            or Metric(**{"name": name, "label": name, **plain, **described.get(name, {})}, compared=True)
            for name in names
        ]

    @cached_property
    def counts(self) -> dict[str, NDArray[np.int64]]:
        """The counts of the final model: `confusion`, and `histograms` and `client_confusion` if known; or nothing."""
        path = self.folder / COUNTS
        if not path.is_file():
            return {}
        try:
            with np.load(path, allow_pickle=False) as stored:
                return {name: stored[name] for name in stored}
        except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
            raise UsageError(f"{path} is damaged: {error}") from error

    @property
    def imbalanced(self) -> bool:
        """Whether the classes of the test set differ much in size, and the run has metrics for this case."""
        confusion, evaluated = np.array(self.stored.get("confusion", ())), self.evaluated
        return bool(evaluated) and "balanced_accuracy" in evaluated[-1].metrics and is_imbalanced(confusion)

    @property
    def ended_early(self) -> bool:
        """Whether the run has fewer rounds than its configuration, and not because a callback stopped it."""
        return len(self.records) < self.table["rounds"] and "stopped" not in self.stored


class Shelf:
    """A folder of runs that can be looked up by their configuration.

    An interrupted or failed run can be resumed if it has a checkpoint. Without one it is left unchanged, and the same
    configuration gets a new folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._finished = {identity(read(path / CONFIG)): path for path in _finished_runs(folder)}

    def find(self, config: Config) -> StoredRun | None:
        """Return the finished run of `config`, if there is one."""
        path = self._finished.get(identity(config.table()))
        return StoredRun.read(path) if path is not None else None

    def unfinished(self, config: Config) -> Path | None:
        """Return the folder of an unfinished run of exactly `config` with a checkpoint."""
        wanted = _comparable(config.table())
        for path in sorted(child for child in self.folder.glob("*") if (child / CONFIG).is_file()):
            waiting = checkpointed_rounds(path) and read_summary(path).get("status") != "completed"
            if waiting and _comparable(read(path / CONFIG)) == wanted:
                return path
        return None

    def place(self, name: str, reserved: Container[Path] = ()) -> Path:
        """Return a folder for a run with this name that contains no run and is not reserved for another."""
        return free_folder(self.folder, file_name(name), reserved)

    def add(self, path: Path) -> StoredRun:
        """Add the finished run in `path`."""
        run = StoredRun.read(path)
        self._finished[identity(run.table)] = path
        return run


def _finished_runs(folder: Path) -> list[Path]:
    """Return the folders of finished runs."""
    candidates = sorted(path.parent for path in folder.glob(f"*/{SUMMARY}") if (path.parent / CONFIG).is_file())
    return [path for path in candidates if read_summary(path).get("status") == "completed"]


def file_name(text: str) -> str:
    """Return text that is a valid file name on any system."""
    return "".join(sign if sign.isalnum() or sign in "-_.+=," else "." for sign in text)
