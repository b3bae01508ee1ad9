"""Checkpoints: everything a run needs to continue as if it had not stopped.

A checkpoint is two files in the run's folder `checkpoints`: `round-000020.safetensors` with every tensor, and
`round-000020.json`, written last, with everything else, including checksums of the tensors, of `metrics.jsonl` so far,
and of itself. The states of clients that are on disk already are linked in a folder beside them. The two newest
checkpoints are kept. No random state is stored, because all random numbers are functions of seed, round and client
(see `fedsat.rounds.sampling`).
"""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout

from fedsat.algorithms import Model, Server
from fedsat.errors import UsageError
from fedsat.experiment.client_states import StateFolder, StoredState, keep
from fedsat.experiment.folder import RECORDS, Reach, speaking_of, sync_folder, whole
from fedsat.experiment.sealed import DamagedError, check_file, read_sealed, write_sealed
from fedsat.experiment.tensors import flatten, nest, read_tensors, write_tensors
from fedsat.metrics import Evaluation
from fedsat.rounds import FederationState
from fedsat.tree import KeptState, KeptStates, nbytes

FOLDER, LOCK = "checkpoints", "lock"
CLIENTS = "clients"
KIND = "checkpoint"
FORMAT = 2
KEPT = 2
EVERY = 10
"""Rounds between checkpoints by default."""
SHARE, LAST_SHARE = 0.02, 0.03
"""By default, the share of a run's time that checkpoints may take, without and with the last one."""
LAST_SECONDS = 1.0
"""Seconds that the last checkpoint may always take, because users may want more rounds."""
FIRST_GUESS = 1 / 200e6
"""First estimate of the seconds to write a byte."""


@dataclass(frozen=True)
class RunState:
    """The state of a run after a round: everything that the next round and the summary depend on."""

    training: FederationState
    evaluation: Evaluation | None = None
    best: Model | None = None
    """The best model so far, if one is chosen (`Setup.criterion`); the records have its value."""
    averaged: Model | None = None
    """The running mean of the global models, if one is kept."""


@dataclass(frozen=True)
class Checkpoint:
    """A run's state, and what must be unchanged when it continues."""

    state: RunState
    reach: Reach
    config: dict[str, Any]
    """The complete configuration as plain values."""
    federation: str
    """The checksum of the data and of their assignment to clients."""
    lanes: int
    """Number of clients trained at once; with another number, results may round differently."""
    made_with: dict[str, Any]
    nodes: dict[str, Any] = field(default_factory=dict)
    """What the server of real nodes remembers of them, as plain values."""


class Checkpoints:
    """The checkpoints of one run in its folder, and the lock of the process that trains it.

    By default there is one every ten rounds, or fewer if they would take too much of the run's time.
    """

    def __init__(self, run: Path, every: int | None) -> None:
        self.folder = run / FOLDER
        self._every = every
        self._lock = FileLock(self.folder / LOCK)
        self._written = 0
        self._seconds_per_byte = FIRST_GUESS
        self._spent, self._began = 0.0, time.monotonic()

    @staticmethod
    def of(run: Path, every: int | None) -> Checkpoints | None:
        """Lock a run and return its checkpoints; None if checkpoints are disabled."""
        if every == 0:
            return None
        checkpoints = Checkpoints(run, every)
        checkpoints.hold()
        return checkpoints

    def hold(self) -> None:
        """Lock the run against other processes, until `release` or the end of this process."""
        with speaking_of(self.folder):
            self.folder.mkdir(exist_ok=True)
            try:
                self._lock.acquire(blocking=False)
            except Timeout as error:
                raise UsageError(f"{self.folder.parent} is in use by another process") from error

    def release(self) -> None:
        """Unlock the run."""
        self._lock.release()

    def __del__(self) -> None:
        self.release()

    def due(self, training: FederationState) -> bool:
        """Whether to write a checkpoint now."""
        if self._every is not None:
            return training.rounds % self._every == 0
        return training.rounds % EVERY == 0 and self._affordable(training, SHARE)

    def due_at_the_end(self, training: FederationState) -> bool:
        """Whether to write a checkpoint at the end of a completed run."""
        short = self._expected(training) <= LAST_SECONDS
        return self._every is not None or short or self._affordable(training, LAST_SHARE)

    def _affordable(self, training: FederationState, share: float) -> bool:
        """Whether one more checkpoint keeps all of them within a share of the time since the start or resumption."""
        return self._spent + self._expected(training) <= share * (time.monotonic() - self._began)

    def _expected(self, training: FederationState) -> float:
        """Estimate the seconds that one more checkpoint takes."""
        return self._seconds_per_byte * _size(training)

    def write(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint atomically, and remove all but the newest two."""
        rounds = checkpoint.state.training.rounds
        if rounds == self._written:
            return
        began = time.monotonic()
        with speaking_of(self.folder):
            on_disk = _on_disk(checkpoint.state.training)
            if on_disk:
                _remove(self.folder / _name(rounds, CLIENTS))  # of a write that was cut short
                keep(on_disk, self.folder / _name(rounds, CLIENTS))
            tensors, empty = flatten(_tensors(checkpoint.state))
            with whole(self.folder / _name(rounds, "safetensors")) as file:
                digest = write_tensors(file, tensors)
            clients = {str(client): [state.digest, list(state)] for client, state in on_disk.items()}
            body = _body(checkpoint) | {"empty": empty, "tensors": digest, "clients": clients}
            write_sealed(self.folder / _name(rounds, "json"), KIND, body)
        self._written = rounds
        self.keep(self.rounds()[:KEPT])
        taken = time.monotonic() - began
        self._spent += taken
        self._seconds_per_byte = taken / _size(checkpoint.state.training)

    def rounds(self) -> list[int]:
        """Return the rounds with a checkpoint, complete or not, newest first."""
        return checkpointed_rounds(self.folder.parent)

    def keep(self, rounds: list[int]) -> None:
        """Remove all other checkpoints, descriptions first, and incomplete files."""
        kept = {_name(number, kind) for number in rounds for kind in ("json", "safetensors", CLIENTS)} | {LOCK}
        with speaking_of(self.folder):
            for path in sorted(self.folder.iterdir(), key=lambda path: path.suffix != ".json"):
                if path.name not in kept:
                    _remove(path)
            sync_folder(self.folder)

    def end(self, *, keep: int) -> None:
        """Unlock the run, and keep this many of its checkpoints."""
        if keep:
            self.keep(self.rounds()[:keep])
            self.release()
            return
        self.release()
        with speaking_of(self.folder):
            shutil.rmtree(self.folder)

    def read(self, rounds: int, device: torch.device, states: StateFolder) -> Checkpoint:
        """Return the checkpoint of a round, if it is complete; client states on disk go into the folder `states`."""
        try:
            body = _read_body(self.folder / _name(rounds, "json"))
            path = self.folder / _name(rounds, "safetensors")
            check_file(path, body["tensors"])
            with (self.folder.parent / RECORDS).open("rb") as file:
                content = file.read(body["metrics"]["size"])
            reach = Reach.of(content)
            if reach.digest.hexdigest() != body["metrics"]["sha256"]:
                raise DamagedError(f"{RECORDS} has been changed since")
            checkpoint = _checkpoint(body, nest(read_tensors(path, device), body["empty"]), reach)
            for client, (digest, trees) in body.get("clients", {}).items():
                kept = self.folder / _name(rounds, CLIENTS) / f"{client}.safetensors"
                check_file(kept, digest)
                checkpoint.state.training.states[int(client)] = states.adopt(kept, digest, trees)
            return checkpoint
        except OSError as error:
            raise DamagedError(f"{Path(error.filename or path).name}: {error.strerror or error}") from error
        except (KeyError, TypeError, ValueError) as error:
            raise DamagedError("it is not a checkpoint") from error


def checkpointed_rounds(run: Path) -> list[int]:
    """Return the rounds for which a folder has a checkpoint, complete or not, newest first."""
    stems = [path.stem.partition("-")[2] for path in (run / FOLDER).glob("round-*.json")]
    return sorted((int(stem) for stem in stems if stem.isdecimal()), reverse=True)


def _size(training: FederationState) -> int:
    """Return the bytes of state between rounds that a checkpoint copies."""
    model = training.server.model
    states = [tree for state in _in_memory(training).values() for tree in state.values()]
    return nbytes([model.params, model.buffers, *training.server.memory.values(), *states])


def _in_memory(training: FederationState) -> dict[int, KeptState]:
    return {client: state for client, state in training.states.items() if not isinstance(state, StoredState)}


def _on_disk(training: FederationState) -> dict[int, StoredState]:
    return {client: state for client, state in training.states.items() if isinstance(state, StoredState)}


def _remove(path: Path) -> None:
    """Remove a file, or a folder of files."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _name(rounds: int, kind: str) -> str:
    return f"round-{rounds:06}.{kind}"


def _tensors(state: RunState) -> dict[str, Any]:
    """Return every tensor of a run by name."""
    training, evaluation = state.training, state.evaluation
    tensors: dict[str, Any] = {
        "model": vars(training.server.model),
        "memory": training.server.memory,
        "clients": {str(client): state for client, state in _in_memory(training).items()},
    }
    for name in ("best", "averaged"):
        if (model := getattr(state, name)) is not None:
            tensors[name] = vars(model)
    if evaluation is not None:
        tensors["confusion"] = torch.from_numpy(evaluation.confusion)
        tensors["client_accuracies"] = torch.from_numpy(evaluation.client_accuracies)
    return tensors


def _body(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return everything of a checkpoint that is not a tensor."""
    state, reach = checkpoint.state, checkpoint.reach
    return {
        "format": FORMAT,
        "round": state.training.rounds,
        "config": checkpoint.config,
        "federation": checkpoint.federation,
        "lanes": checkpoint.lanes,
        "metrics": {"size": reach.size, "sha256": reach.digest.hexdigest()},
        "test_loss": None if state.evaluation is None else state.evaluation.loss,
        "made_with": checkpoint.made_with,
        "nodes": checkpoint.nodes,
    }


def _read_body(path: Path) -> dict[str, Any]:
    body = read_sealed(path, KIND)
    if body["format"] != FORMAT:
        raise DamagedError(f"{path.name} has format {body['format']}; this version of fedsat reads {FORMAT}")
    return body


def _checkpoint(body: dict[str, Any], tensors: dict[str, Any], reach: Reach) -> Checkpoint:
    server = Server(Model(**tensors["model"]), tensors["memory"])
    states: KeptStates = {int(client): state for client, state in tensors["clients"].items()}
    evaluation = None
    if "confusion" in tensors:
        confusion, accuracies = (tensors[name].cpu().numpy() for name in ("confusion", "client_accuracies"))
        evaluation = Evaluation(confusion, body["test_loss"], accuracies)
    state = RunState(
        training=FederationState(server, states, body["round"]),
        evaluation=evaluation,
        best=Model(**tensors["best"]) if "best" in tensors else None,
        averaged=Model(**tensors["averaged"]) if "averaged" in tensors else None,
    )
    return Checkpoint(
        state, reach, body["config"], body["federation"], body["lanes"], body["made_with"], body.get("nodes", {})
    )
