"""Resuming a run from its newest complete checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from fedsat.data import Dataset
from fedsat.errors import FedsatError, UsageError
from fedsat.experiment.checkpoint import FOLDER, Checkpoint, Checkpoints, RunState, checkpointed_rounds
from fedsat.experiment.client_states import StateFolder
from fedsat.experiment.config import Config, complete, read
from fedsat.experiment.environment import pick_devices
from fedsat.experiment.folder import (
    BEST_MODEL,
    CONFIG,
    ON_NODES,
    RECORDS,
    SUMMARY,
    Reach,
    RunFolder,
    parse_records,
    read_summary,
    speaking_of,
    write_whole,
)  # fmt: skip
from fedsat.experiment.run import Run
from fedsat.experiment.sealed import DamagedError
from fedsat.experiment.setup import Setup
from fedsat.rounds import lr_schedules, start
from fedsat.tree import Tree

MAY_CHANGE = ("rounds", "minutes", "checkpoint_every", "state_memory", "track")
"""Settings that may change when a run is resumed."""

Build = Callable[[Config, Mapping[str, Any]], Setup]
"""Builds what a run is made of, from its configuration and what its checkpoint remembers of real nodes, if anything."""


def restore(
    path: Path,
    rounds: int | None = None,
    dataset: str | Dataset | None = None,
    minutes: float | None = None,
    on_nodes: Build | None = None,
) -> Run:
    """Return the run in `path` as it was at its last checkpoint, ready to `train`.

    `rounds` is a new number of rounds, and `minutes` a new time budget. `dataset` is needed if the run was started with
    a dataset object, and `on_nodes`, which connects to them, if it was run on real nodes. Rounds that were recorded
    after the checkpoint are removed and repeated. A run without a checkpoint yet starts again.
    """
    wanted = wanted_config(path, rounds, dataset, minutes)
    if on_nodes is None and (path / ON_NODES).is_file():
        raise UsageError(
            f"{path} was run on real nodes, which keep their clients' states; start its server again with out = {path}"
        )
    build = on_nodes or _simulation
    recorded = (path / RECORDS).is_file() and (path / RECORDS).stat().st_size > 0
    kept = (path / FOLDER).is_dir() or not recorded  # rounds that were recorded without checkpoints are never discarded
    checkpoints = Checkpoints.of(path, wanted.checkpoint_every) if kept else None
    if checkpoints is None:
        raise UsageError(f"{path} was run without checkpoints and cannot be resumed")
    device = pick_devices(wanted.device)[0]
    states = StateFolder(path, wanted.state_memory, device)
    checkpoint, notes = _newest(checkpoints, device, states)
    if checkpoint is None:
        setup = build(wanted, {})
        run = Run(setup, RunState(start(setup.engine)), RunFolder(path, Reach.of(b"")), checkpoints, states)
    else:
        _check_config(path, wanted, checkpoint)
        setup = build(wanted, checkpoint.nodes)
        _check_setup(path, setup, checkpoint)
        records = parse_records((path / RECORDS).read_bytes()[: checkpoint.reach.size], path / RECORDS)
        run = Run(setup, checkpoint.state, RunFolder(path, checkpoint.reach), checkpoints, states, records)
    if run.training.rounds > wanted.rounds:
        raise UsageError(f"{path} already has {run.training.rounds} rounds; --rounds must be larger")
    _set_back(run)
    setup.notes[:0] = [*notes, f"{path} resumes after round {run.training.rounds} of {wanted.rounds}"]
    return run


def wanted_config(
    path: Path, rounds: int | None = None, dataset: str | Dataset | None = None, minutes: float | None = None
) -> Config:
    """Return the configuration of a run with new limits, after checking that there is something left to train."""
    if not (path / CONFIG).is_file():
        raise UsageError(f"{path} contains no run: it has no {CONFIG}")
    config = _with_dataset(path, Config.of(read(path / CONFIG)), dataset)
    changes: dict[str, Any] = {"rounds": rounds, "minutes": minutes}
    wanted = replace(config, **{key: value for key, value in changes.items() if value is not None})
    _check_worth(path, config, wanted)
    return wanted


def _simulation(config: Config, nothing: Mapping[str, Any]) -> Setup:
    del nothing
    return Setup.of(config)


def _with_dataset(path: Path, config: Config, dataset: str | Dataset | None) -> Config:
    """Return the configuration with the dataset object of the run, after checking its checksum."""
    if not isinstance(dataset, Dataset):
        return config
    if dataset.reference != config.dataset_name:
        raise UsageError(f"{path} was started with the dataset {config.dataset_name}, not with {dataset.reference}")
    return replace(config, dataset=dataset)


def _check_worth(path: Path, config: Config, wanted: Config) -> None:
    """Refuse to resume a completed run without more rounds."""
    if wanted.rounds != config.rounds and config.lr_schedule.spans_run:
        name = lr_schedules.name_of(config.lr_schedule)
        raise UsageError(
            f"{path} cannot change its number of rounds: the {name} schedule extends over all {config.rounds}"
        )
    summary = read_summary(path)
    if summary.get("status") != "completed":
        return
    if not checkpointed_rounds(path):
        more = wanted.rounds if wanted.rounds > config.rounds else "N"
        raise UsageError(
            f"{path} is complete with {config.rounds} rounds and has no checkpoint; "
            f"to repeat it with more rounds, use fedsat run {path / CONFIG} --rounds {more}"
        )
    ruled = (
        bool(config.early_stop or config.minutes or config.budget) and "stopped" in summary
    )  # the same rule would stop it again
    if wanted.minutes == config.minutes and (ruled or wanted.rounds <= config.rounds):
        why = f" ({summary['stopped']})" if "stopped" in summary else ""
        how = f"repeat it with other limits: fedsat run {path / CONFIG} --out …" if ruled else "use --rounds N"
        raise UsageError(f"{path} is complete with {summary['rounds']} rounds{why}; to train for longer, {how}")


def _newest(checkpoints: Checkpoints, device: torch.device, states: StateFolder) -> tuple[Checkpoint | None, list[str]]:
    """Return the newest complete checkpoint and notes about damaged ones; None if there never was one."""
    notes: list[str] = []
    for rounds in checkpoints.rounds():
        try:
            return checkpoints.read(rounds, device, states), notes
        except DamagedError as error:
            notes.append(f"the checkpoint of round {rounds} is damaged ({error}); the previous one is used")
    if notes:
        reasons = "; ".join(note.partition("; the previous")[0] for note in notes)
        path = checkpoints.folder.parent
        raise FedsatError(f"{path} cannot be resumed: {reasons}; to repeat it, use fedsat run {path / CONFIG} --out …")
    return None, notes


def _check_config(path: Path, config: Config, checkpoint: Checkpoint) -> None:
    """Refuse to resume if settings have changed since the run was started."""
    if changes := changed(complete(checkpoint.config), config.table()):
        raise UsageError(f"{path / CONFIG} has changed since the run was started: {'; '.join(changes)}")


def _check_setup(path: Path, setup: Setup, checkpoint: Checkpoint) -> None:
    """Refuse to resume with different data or a different network; note what may change the last digits."""
    if checkpoint.federation != setup.fingerprint:
        raise UsageError(
            f"{path} cannot be resumed: the data, or their partition, have changed since its last checkpoint"
        )
    kept, now = checkpoint.state.training.server.model, setup.engine.initial_model
    if _shapes(kept.params) != _shapes(now.params) or _shapes(kept.buffers) != _shapes(now.buffers):
        raise UsageError(f"{path} cannot be resumed: the model {setup.config.model['name']} now has different weights")
    _same_width(setup, checkpoint.lanes)
    made, here = checkpoint.made_with, setup.environment
    moved = [key for key in ("fedsat", "torch", "device", "threads", "compiler") if made.get(key) != here[key]]
    if moved:
        changes = ", ".join(f"{key} was {made.get(key)} and is {here[key]}" for key in moved)
        setup.notes.append(f"{changes}: the last digits may differ")


def _shapes(tree: Tree) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in tree.items()}


def changed(before: Mapping[str, Any], after: Mapping[str, Any], where: str = "") -> list[str]:
    """Describe every setting that differs and may not."""
    found: list[str] = []
    for key in dict.fromkeys([*before, *after]):
        old, new = before.get(key), after.get(key)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            found += changed(old, new, f"{where}{key}.")
        elif old != new and f"{where}{key}" not in MAY_CHANGE:
            found.append(f"{where}{key} was {old!r} and is {new!r}")
    return found


def _same_width(setup: Setup, lanes: int) -> None:
    """Train as many clients at once as before, because with another number, results may round differently."""
    engine: Any = setup.engine
    sampled = setup.config.per_round
    if min(getattr(engine, "lanes", 1), sampled) != min(lanes, sampled):
        engine.lanes = lanes


def _set_back(run: Run) -> None:
    """Set the files back to the checkpoint; later rounds will be repeated."""
    assert run.folder is not None
    assert run.checkpoints is not None
    path = run.folder.path
    with speaking_of(path):
        write_whole(path / CONFIG, run.setup.config.to_toml().encode())
        (path / SUMMARY).unlink(missing_ok=True)
    run.folder.settle()
    if run.state.best is not None:
        run.save_model("best", run.state.best)
    else:
        (path / BEST_MODEL).unlink(missing_ok=True)
    run.checkpoints.keep([rounds for rounds in run.checkpoints.rounds() if rounds <= run.training.rounds])
