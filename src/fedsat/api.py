"""The functions of the library: everything that the command line can do."""

from __future__ import annotations

import shutil
import tempfile
import warnings
import weakref
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedsat.algorithms import Algorithm
from fedsat.data import Columns, Dataset, as_dataset
from fedsat.errors import UsageError
from fedsat.experiment import Callbacks, Config, Run, prepare, restore
from fedsat.experiment.batch import Display, Silent, carry_out, train_shown
from fedsat.experiment.defaults import Given
from fedsat.experiment.jobs import contenders, plan
from fedsat.experiment.samplers import SamplerName
from fedsat.experiment.store import Shelf, StoredRun
from fedsat.experiment.tuning import HOLDOUT, Search
from fedsat.metrics import metric_path
from fedsat.options import options_of
from fedsat.report.look import Look
from fedsat.report.side_by_side import Comparison
from fedsat.report.tuning import Tuning

Runs = Comparison | Run | StoredRun | str | Path
"""Runs to report on: a comparison, a run, or a folder of one or several runs."""


def configure(*, with_parts: Iterable[str] = (), without: Iterable[str] = (), **settings: Any) -> Config:
    """Return a configuration. Settings are named as on the command line, for example `lr=0.05` or `gamma=0.5`.

    A part may be given by name, as a table (`partition={"name": "lsmc", "classes_per_client": 2}`), as an
    instance (`algorithm=FedSat(gamma=0.5)`), or, for your own model or method, as its class. `metrics` takes
    functions or their `module:name`. `dataset` takes a name, a path, a `Dataset`, or an object that can become one: a
    data frame, a Hugging Face or torch dataset, a pair (x, y), or `{"train": …, "test": …}` of these. For a table, the
    model is `tabular`. If the data are already divided among clients, the partition is `natural` and the number of
    clients is taken from the data.
    """
    return Config.of(Given(_named(settings), on=tuple(with_parts), off=tuple(without)).table)


def run(
    *, out: str | Path | None = None, callbacks: Callbacks = (), progress: bool | None = None, **settings: Any
) -> Run:
    """Train a federation; see `configure` for the settings. Files are written only if `out` names a folder.

    A callback is a `Callback`, or a function that is called with the run and the record after each round. By default,
    progress is shown in notebooks and on terminals; set `progress` to change this.
    """
    prepared = prepare(configure(**settings), Path(out) if out is not None else None)
    train_shown(_display(progress), prepared, callbacks=callbacks)
    return prepared


def resume(
    folder: str | Path,
    *,
    rounds: int | None = None,
    minutes: float | None = None,
    dataset: Dataset | None = None,
    callbacks: Callbacks = (),
    progress: bool | None = None,
) -> Run:
    """Continue the run in `folder` from its last checkpoint, or to a larger number of rounds or minutes.

    A run that was started with a dataset object needs it again: `dataset`.
    """
    loaded = restore(Path(folder), rounds, dataset, minutes)
    train_shown(_display(progress), loaded, callbacks=callbacks)
    return loaded


def compare(
    methods: Sequence[str | type[Algorithm]] = ("fedavg", "scaffold", "fedsat"),
    *,
    seeds: int = 1,
    grid: Mapping[str, Sequence[Any]] | None = None,
    jobs: int = 1,
    target: float | None = None,
    out: str | Path | None = None,
    progress: bool | None = None,
    **settings: Any,
) -> Comparison:
    """Train the same federation with several methods, over seeds, and return the runs side by side.

    Args:
        methods: Names such as `fedsat`, `fedsat-pwa` (without a part), `fedavg+psl` (with one) or `module:Name`, or
            classes.
        seeds: Runs of each method, with the seed in `settings` (default 0) and the next ones.
        grid: Values to try for each setting, such as `{"lr": [0.01, 0.1]}`; all combinations are run.
        jobs: Number of runs to train at the same time, each in its own process.
        target: An accuracy, such as 0.9; the table then shows the rounds until each method reaches and keeps it.
        out: Folder for the runs. Finished runs in it are not repeated, and interrupted ones are resumed. Without it,
            the files are deleted together with the comparison.
        progress: Whether progress is shown; by default in notebooks and on terminals.
        settings: Settings of all methods that have them, named as in `configure`.
    """
    if target is not None and not 0 < target <= 1:
        raise UsageError(f"target is {target:g}; it must be a share, such as 0.85 for 85 %")
    seed, named = settings.pop("seed", 0), _named(settings)
    planned = plan(
        _of_every_method(named).also([("seed", seed)]), _method_names(methods), seeds, named, list((grid or {}).items())
    )
    folder = Path(out) if out is not None else Path(tempfile.mkdtemp(prefix="fedsat-"))
    outcome = carry_out(_display(progress), planned, Shelf(folder), jobs)
    if not outcome.runs:
        outcome.complain()
    _warn_of(outcome.failures)
    found = Comparison(outcome.runs, target, outcome.failures)
    if out is None:
        weakref.finalize(found, shutil.rmtree, folder, ignore_errors=True)
    return found


def tune(
    methods: Sequence[str | type[Algorithm]] = ("fedavg", "scaffold", "fedsat"),
    *,
    grid: Mapping[str, Sequence[Any]],
    seeds: int = 1,
    metric: str = "balanced_accuracy",
    trials: int | None = None,
    sampler: SamplerName = "grid",
    holdout: float = HOLDOUT,
    jobs: int = 1,
    out: str | Path | None = None,
    progress: bool | None = None,
    **settings: Any,
) -> Tuning:
    """Search for the best settings of each method, and return the trials and the best configurations.

    Settings are chosen by results on samples that are held out of the training data. The test set is not used.

    Args:
        methods: Names or classes, as in `compare`.
        grid: Values to try for each setting, in all combinations: `{"lr": [0.01, 0.1], "gamma": [0.5, 0.9]}`. A method
            tries only the settings that it has.
        seeds: Runs of each trial, with the seed in `settings` (default 0) and the next ones.
        metric: The metric that ranks the choices, averaged over the last ten rounds and over seeds.
        trials: Number of combinations that each method tries, chosen at random. By default, the size of the smallest
            grid of any method, so that all methods try the same number.
        sampler: `grid`, or `optuna`, which bases each choice on the results of the previous ones.
        holdout: The share of each class of the training data that is held out.
        jobs: Number of runs at the same time, each in its own process.
        out: Folder for the runs, `tuning.csv` and `best/METHOD.toml`. Runs that it already has are not repeated.
        progress: Whether progress is shown; by default in notebooks and on terminals.
        settings: Settings of all methods that have them, named as in `configure`.
    """
    seed, named = settings.pop("seed", 0), _named(settings)
    given = _of_every_method(named).also([("seed", seed), ("holdout", holdout)])
    found = contenders(given, _method_names(methods), seeds, named, list(grid.items()))
    search = Search.of(found, metric, trials, sampler)
    with tempfile.TemporaryDirectory(prefix="fedsat-") as temporary:
        done, outcome = search.run(_display(progress), Shelf(Path(out or temporary)), jobs)
    if not outcome.runs:
        outcome.complain()
    _warn_of(outcome.failures)
    tuning = Tuning(done, search.metric, outcome.failures)
    if out is not None:
        tuning.write(out)
    return tuning


def look(**settings: Any) -> Look:
    """Look at a run's data before training: who holds what, how skewed the data are, and what that suggests.

    Takes the settings of `configure`. Notebooks display the result. Its `summary` has the numbers, `suggestions` has
    the advice, and `draw(path)` writes the figure.
    """
    return Look.at(configure(**settings))


def report(*runs: Runs, out: str | Path = "report.html", target: float | None = None) -> Path:
    """Write one page that shows runs side by side, and return its path."""
    found = [run for given in runs for run in _stored(given)]
    return Comparison(found, target).report(out)


def load(folder: str | Path) -> StoredRun:
    """Open the run in `folder`, finished or not: its configuration, records, summary and models."""
    return StoredRun.read(Path(folder))


def _method_names(methods: str | Sequence[str | type[Algorithm]]) -> list[str]:
    """Return the methods by the names that a configuration uses."""
    given = [methods] if isinstance(methods, str) else methods
    names = [_by_name(method) if isinstance(method, type) else method for method in given]
    if not all(isinstance(name, str) for name in names):
        raise UsageError("methods takes names or classes; try options of a method with grid, such as {'gamma': [0.5]}")
    return names


def _warn_of(failures: Mapping[str, str]) -> None:
    for label, error in failures.items():
        warnings.warn(f"{label} failed: {error}", stacklevel=3)


def _stored(given: Runs) -> Sequence[StoredRun]:
    if isinstance(given, Comparison):
        return given.runs
    if isinstance(given, StoredRun):
        return [given]
    if isinstance(given, Run):
        if given.folder is None:
            raise UsageError(
                "this run wrote no files; to report on it, pass a folder to fedsat.run, such as out='runs/NAME'"
            )
        return [StoredRun.read(given.folder.path)]
    return Comparison.of([Path(given)]).runs


def _display(progress: bool | None) -> Display:
    """Show progress if requested, or by default where it can be shown live."""
    if progress is False:
        return Silent()
    try:
        from rich.console import Console  # noqa: PLC0415 (not needed to train)

        from fedsat.report.notebook import NotebookDisplay  # noqa: PLC0415
        from fedsat.report.progress import ConsoleDisplay  # noqa: PLC0415
    except ImportError:
        return Silent()
    console = Console()
    if console.is_jupyter:
        return NotebookDisplay()
    return ConsoleDisplay(console) if progress or console.is_terminal else Silent()


def _named(settings: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return the settings with classes and metric functions replaced by their names, as configurations store them.

    An object with data becomes a `Dataset`. The settings about its columns are then no longer needed.
    """
    settings = (
        {**settings, "dataset": str(settings["dataset"])} if isinstance(settings.get("dataset"), Path) else settings
    )
    if "dataset" in settings and not isinstance(settings["dataset"], str | Dataset):
        columns = Columns.of(settings)
        made = as_dataset(
            settings["dataset"], columns=columns, image_size=settings.get("image_size"), seed=settings.get("seed", 0)
        )
        settings = {key: value for key, value in settings.items() if key not in vars(columns)} | {"dataset": made}
    named = {key: _by_name(value) if isinstance(value, type) else value for key, value in settings.items()}
    if not isinstance(named.get("metrics", ""), str):
        named["metrics"] = [metric_path(each) for each in named["metrics"]]
    return list(named.items())


def _of_every_method(named: Sequence[tuple[str, Any]]) -> Given:
    """Return the settings that do not depend on the method."""
    return Given([(key, value) for key, value in named if key in options_of(Config)])


def _by_name(part: type) -> str:
    return f"{part.__module__}:{part.__qualname__}"
