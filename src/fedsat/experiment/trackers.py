"""Trackers: callbacks that send a run's settings and metrics to TensorBoard, MLflow, or Weights & Biases.

Everything stays on this machine unless `MLFLOW_TRACKING_URI` or `WANDB_MODE` says otherwise. A resumed run continues
where it was: rounds that are repeated replace those that were tracked before, or repeat the same numbers.
"""

from __future__ import annotations

import importlib
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from fedsat.errors import UsageError, unknown
from fedsat.experiment.callbacks import Callback
from fedsat.experiment.settings import flatten
from fedsat.metrics import METRICS, RoundRecord

if TYPE_CHECKING:
    from fedsat.experiment.run import Run

PROJECT = "fedsat"
"""The MLflow experiment and the W&B project, unless the tool's own environment variable names another."""


class Tracker(Callback):
    """Base class of trackers: sends the values of a round once they are final."""

    package: ClassVar[str]
    """The module that the tracker imports, which the extra of the tracker's name installs."""

    def __init__(self) -> None:
        self._sent: int | None = None
        """Rounds that have been sent; None before `open` has succeeded."""

    def start(self, run: Run) -> None:
        """Open the run in the tool, after the rounds that it already has."""
        assert run.folder is not None, "`prepare` refuses trackers without a folder"
        self.open(run, run.folder.path.resolve())
        self._sent = run.training.rounds

    def round(self, run: Run, record: RoundRecord) -> None:
        """Send the round, unless it is the last one of a run that was stopped, which may yet be evaluated."""
        del record
        if run.stopped is None:
            self._send(run)

    def end(self, run: Run) -> None:
        """Send what is left, and close the run in the tool."""
        if self._sent is not None:
            self._send(run)
            self.close(run)

    def _send(self, run: Run) -> None:
        for record in run.records[self._sent :]:
            self.log(record.round, tracked(run, record))
        self._sent = len(run.records)

    def open(self, run: Run, folder: Path) -> None:
        """Begin or continue a run, and send its settings."""
        raise NotImplementedError

    def log(self, number: int, values: Mapping[str, float]) -> None:
        """Send the values of a round."""
        raise NotImplementedError

    def close(self, run: Run) -> None:
        """Record how the run ended."""
        raise NotImplementedError


class TensorBoard(Tracker):
    """Event files in `RUN/tensorboard`."""

    package = "tensorboard"

    def open(self, run: Run, folder: Path) -> None:
        """Write the settings as text, and discard events of rounds that will be repeated."""
        from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415 (an extra)

        self._writer: Any = SummaryWriter(str(folder / "tensorboard"), purge_step=run.training.rounds + 1)
        settings = "".join(f"    {line}\n" for line in run.setup.config.to_toml().splitlines())  # Markdown's code
        self._writer.add_text("settings", settings, run.training.rounds + 1)

    def log(self, number: int, values: Mapping[str, float]) -> None:
        """Write one event per value. TensorBoard groups names by their first part."""
        for name, value in values.items():
            self._writer.add_scalar(name if "/" in name else f"run/{name}", value, number)
        self._writer.flush()

    def close(self, run: Run) -> None:
        """Close the event file."""
        del run
        self._writer.close()


class MLflow(Tracker):
    """A run in MLflow: in `MLFLOW_TRACKING_URI`, or else in `mlflow.db` beside the run's folder."""

    package = "mlflow"
    _FOLDER = "fedsat.folder"

    def open(self, run: Run, folder: Path) -> None:
        """Start a run with the settings as parameters, or continue the one of a resumed run by its tag."""
        from mlflow.entities import Param  # noqa: PLC0415 (an extra)
        from mlflow.tracking import MlflowClient  # noqa: PLC0415

        self._client = MlflowClient(os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{folder.parent / 'mlflow.db'}")
        experiment = self._experiment(os.environ.get("MLFLOW_EXPERIMENT_NAME") or PROJECT)
        tagged = f"tags.`{self._FOLDER}` = '{folder}'"
        found = self._client.search_runs([experiment], tagged, max_results=1) if run.training.rounds else []
        if found:
            self._id = found[0].info.run_id
            self._client.update_run(self._id, status="RUNNING")
            return
        tags = {self._FOLDER: str(folder), "fedsat.method": run.setup.config.method}
        self._id = self._client.create_run(experiment, tags=tags, run_name=folder.name).info.run_id
        settings = [Param(_allowed(name), str(value)) for name, value in flatten(run.setup.config.table()).items()]
        for some in _at_most(100, settings):  # MLflow's limit
            self._client.log_batch(self._id, params=some)

    def _experiment(self, name: str) -> str:
        found = self._client.get_experiment_by_name(name)
        return str(self._client.create_experiment(name) if found is None else found.experiment_id)

    def log(self, number: int, values: Mapping[str, float]) -> None:
        """Send one metric per value."""
        from mlflow.entities import Metric  # noqa: PLC0415 (an extra)

        now = time.time_ns() // 1_000_000
        for some in _at_most(1000, [Metric(_allowed(name), value, now, number) for name, value in values.items()]):
            self._client.log_batch(self._id, metrics=some)

    def close(self, run: Run) -> None:
        """Set the status."""
        status = {"completed": "FINISHED", "interrupted": "KILLED"}.get(run.status, "FAILED")
        self._client.set_terminated(self._id, status)


class WeightsAndBiases(Tracker):
    """A W&B run in `RUN/wandb`: offline, for `wandb sync`, unless `WANDB_MODE` is set."""

    package = "wandb"

    def open(self, run: Run, folder: Path) -> None:
        """Start a run with the settings as its configuration, or continue that of a resumed run."""
        import wandb  # noqa: PLC0415 (an extra)

        mode: Any = os.environ.get("WANDB_MODE") or "offline"
        earlier = sorted((folder / "wandb").glob("*run-*-*")) if run.training.rounds else []
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT") or PROJECT,
            name=folder.name,
            dir=str(folder),
            mode=mode,
            config=run.setup.config.table(),
            id=earlier[-1].name.rpartition("-")[2] if earlier else None,
            resume="allow",
            settings=wandb.Settings(silent=True),
        )
        self._run.define_metric("*", step_metric="round")  # W&B's steps cannot go back, but repeated rounds do

    def log(self, number: int, values: Mapping[str, float]) -> None:
        """Log the values."""
        self._run.log({"round": number, **values})

    def close(self, run: Run) -> None:
        """Finish the run, as failed unless it was completed."""
        self._run.finish(exit_code=0 if run.status == "completed" else 1)


TRACKERS: Mapping[str, type[Tracker]] = {"tensorboard": TensorBoard, "mlflow": MLflow, "wandb": WeightsAndBiases}
"""Trackers by name. The extra that installs the package of a tracker has the same name."""


def find_trackers(names: Iterable[str]) -> tuple[Tracker, ...]:
    """Return the trackers with these names, after checking that their packages are installed."""
    return tuple(_find(name) for name in dict.fromkeys(names))


def _find(name: str) -> Tracker:
    if name not in TRACKERS:
        raise unknown("tracker", name, TRACKERS)
    tracker = TRACKERS[name]
    try:
        importlib.import_module(tracker.package)
    except ImportError as error:
        raise UsageError(
            f"track {name} needs {tracker.package}; install it with pip install 'fedsat[{name}]'"
        ) from error
    return tracker()


def tracked(run: Run, record: RoundRecord) -> dict[str, float]:
    """Return the numbers of a round by name: `accuracy`, `recall/CLASS` for one of each class, `averaged/accuracy`.

    Numbers of single clients are left out.
    """
    values = {
        "train_loss": record.train_loss,
        "lr": record.lr,
        "effective_clients": record.effective_clients,
        "megabytes": (record.bytes_down + record.bytes_up) / 1e6,
        "seconds": sum(record.seconds.values()),
        "epsilon": record.epsilon,
        **record.metrics,
    }
    for model, metrics in record.models.items():
        values |= {f"{model}/{name}": value for name, value in metrics.items() if not isinstance(value, list)}
    return dict(_numbers(values, _by_class(run), run.setup.engine.class_names))


def _numbers(
    values: Mapping[str, Any], by_class: Iterable[str], class_names: Sequence[str]
) -> Iterator[tuple[str, float]]:
    for name, value in values.items():
        if isinstance(value, int | float):
            yield name, float(value)
        elif name in by_class and value is not None:
            yield from (
                (f"{name}/{each}", one) for each, one in zip(class_names, value, strict=True) if one is not None
            )


def _by_class(run: Run) -> set[str]:
    return {each.name for each in (*METRICS.values(), *run.setup.metrics) if each.per == "class"}


def _allowed(name: str) -> str:
    """Return a name with the characters that MLflow allows."""
    return re.sub(r"[^\w\-. /]", "_", name)


def _at_most(size: int, items: Sequence[Any]) -> Iterator[Sequence[Any]]:
    return (items[first : first + size] for first in range(0, len(items), size))
