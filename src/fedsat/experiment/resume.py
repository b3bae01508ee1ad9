"""Taking up a run where it was put away: from its newest checkpoint that is whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from fedsat.errors import FedsatError, UsageError
from fedsat.experiment.checkpoint import FOLDER, Checkpoint, Checkpoints, DamagedError, RunState, checkpointed_rounds
from fedsat.experiment.config import Config, complete, read
from fedsat.experiment.environment import environment, pick_device
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
from fedsat.experiment.run import Run, Setup
from fedsat.rounds import start
from fedsat.tree import Tree

MAY_CHANGE = ("rounds", "checkpoint_every")
"""Settings that do not enter the rounds already played."""


def load_checkpointed(path: Path, rounds: int | None = None) -> Run:
    """The run in `path` as it was at its last checkpoint, ready to `train`; `rounds` is its new number of rounds.

    Rounds that were recorded after the checkpoint are cut off and will be played again. A run that was ended before
    its first checkpoint begins again.
    """
    if not (path / CONFIG).is_file():
        raise UsageError(f"{path} holds no run: it has no {CONFIG}")
    config = Config.of(read(path / CONFIG))
    wanted = replace(config, rounds=rounds) if rounds is not None else config
    _check_worth(path, config, wanted)
    recorded = (path / RECORDS).is_file() and (path / RECORDS).stat().st_size > 0
    kept = (path / FOLDER).is_dir() or not recorded  # what others recorded is never thrown away
    checkpoints = Checkpoints.of(path, config.checkpoint_every) if kept else None
    if checkpoints is None:
        raise UsageError(f"{path} was run without checkpoints: it cannot be taken up")
    checkpoint, notes = _newest(checkpoints, pick_device(wanted.device))
    if checkpoint is None:
        setup = Setup.of(wanted)
        run = Run(setup, RunState(start(setup.engine)), RunFolder(path, Reach.of(b"")), checkpoints)
    else:
        _check_config(path, wanted, checkpoint)
        setup = Setup.of(wanted)
        _check_setup(path, setup, checkpoint)
        records = parse_records((path / RECORDS).read_bytes()[: checkpoint.reach.size], path / RECORDS)
        run = Run(setup, checkpoint.state, RunFolder(path, checkpoint.reach), checkpoints, records)
    if run.training.rounds > wanted.rounds:
        raise UsageError(f"{path} has played {run.training.rounds} rounds already; --rounds must be more")
    _take_back(run)
    setup.notes[:0] = [*notes, f"{path} goes on after round {run.training.rounds} of {wanted.rounds}"]
    return run


def _check_worth(path: Path, config: Config, wanted: Config) -> None:
    """Refuse to go on with what real nodes play, or with a run that is done, unless it is to have more rounds."""
    if (path / ON_NODES).is_file():
        raise UsageError(f"{path} is played by real nodes, which keep their clients' states: it cannot be taken up")
    if read_summary(path).get("status") != "completed":
        return
    if not checkpointed_rounds(path):
        more = wanted.rounds if wanted.rounds > config.rounds else "N"
        raise UsageError(
            f"{path} is complete with {config.rounds} rounds and keeps no checkpoint to go on from; "
            f"fedsat run {path / CONFIG} --rounds {more} runs it anew"
        )
    if wanted.rounds <= config.rounds:
        raise UsageError(f"{path} is complete with {config.rounds} rounds; --rounds N goes on to more")


def _newest(checkpoints: Checkpoints, device: torch.device) -> tuple[Checkpoint | None, list[str]]:
    """The newest checkpoint that is whole, and a word on each that is not; None if there never was one."""
    notes: list[str] = []
    for rounds in checkpoints.rounds():
        try:
            return checkpoints.read(rounds, device), notes
        except DamagedError as error:
            notes.append(f"the checkpoint of round {rounds} is damaged ({error}); the one before is used")
    if notes:
        reasons = "; ".join(note.partition("; the one")[0] for note in notes)
        path = checkpoints.folder.parent
        raise FedsatError(f"{path} cannot be taken up: {reasons}; fedsat run {path / CONFIG} --out … runs it anew")
    return None, notes


def _check_config(path: Path, config: Config, checkpoint: Checkpoint) -> None:
    """Refuse to go on under other settings than those of the rounds already played."""
    changes = _changes(complete(checkpoint.config), config.table())
    if changes:
        raise UsageError(f"{path / CONFIG} is not what the run was begun with: {'; '.join(changes)}")


def _check_setup(path: Path, setup: Setup, checkpoint: Checkpoint) -> None:
    """Refuse to go on with other data or another network, and be as before in what decides the last digits."""
    if checkpoint.federation != setup.fingerprint:
        raise UsageError(f"{path} cannot go on: the data, or who holds them, have changed since its last checkpoint")
    kept, now = checkpoint.state.training.server.model, setup.engine.initial_model
    if _shapes(kept.params) != _shapes(now.params) or _shapes(kept.buffers) != _shapes(now.buffers):
        raise UsageError(f"{path} cannot go on: the model {setup.config.model['name']} has other weights now")
    _same_width(setup, checkpoint.lanes)
    made, here = checkpoint.made_with, environment(setup.device)
    moved = [key for key in ("fedsat", "torch", "device", "threads") if made.get(key) != here[key]]
    if moved:
        told = ", ".join(f"{key} was {made.get(key)} and is {here[key]}" for key in moved)
        setup.notes.append(f"{told}: the last digits may come out differently")


def _shapes(tree: Tree) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in tree.items()}


def _changes(before: Mapping[str, Any], after: Mapping[str, Any], where: str = "") -> list[str]:
    """Every setting that differs, in words."""
    told: list[str] = []
    for key in dict.fromkeys([*before, *after]):
        old, new = before.get(key), after.get(key)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            told += _changes(old, new, f"{where}{key}.")
        elif old != new and f"{where}{key}" not in MAY_CHANGE:
            told.append(f"{where}{key} was {old!r} and is {new!r}")
    return told


def _same_width(setup: Setup, lanes: int) -> None:
    """Train as many clients side by side as before, whatever memory is free now: widths may round differently."""
    engine: Any = setup.engine
    called = setup.config.per_round
    if min(getattr(engine, "lanes", 1), called) != min(lanes, called):
        engine.lanes = lanes


def _take_back(run: Run) -> None:
    """Bring the files to where the run stands: what came after its checkpoint will come again."""
    assert run.folder is not None
    assert run.checkpoints is not None
    path = run.folder.path
    with speaking_of(path):
        write_whole(path / CONFIG, run.setup.config.to_toml().encode())
        (path / SUMMARY).unlink(missing_ok=True)
    run.folder.settle()
    if run.state.best is not None:
        run.folder.save_model(run.state.best, BEST_MODEL)
    else:
        (path / BEST_MODEL).unlink(missing_ok=True)
    run.checkpoints.keep([rounds for rounds in run.checkpoints.rounds() if rounds <= run.training.rounds])
