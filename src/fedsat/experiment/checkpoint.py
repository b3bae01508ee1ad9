"""Checkpoints: all that a run needs to go on as if it had never stopped.

A checkpoint is two files in the run's folder `checkpoints`: `round-000020.safetensors` with every tensor, and
`round-000020.json`, written last, with everything else, the checksum of the tensors, how far `metrics.jsonl` went
and its checksum then, and its own checksum. The two newest checkpoints are kept. Nothing random is stored: whatever
is drawn is a function of seed, round and client (see `fedsat.rounds.sampling`).
"""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout

from fedsat.algorithms import Model, Server
from fedsat.errors import FedsatError, UsageError
from fedsat.experiment.folder import RECORDS, Reach, speaking_of, sync_folder, whole, write_whole
from fedsat.experiment.tensors import flatten, nest, read_tensors, write_tensors
from fedsat.metrics import Evaluation
from fedsat.rounds import FederationState
from fedsat.tree import nbytes

FOLDER, LOCK = "checkpoints", "lock"
FORMAT = 2
KEPT = 2
EVERY = 10
"""Rounds between checkpoints where the user does not say …"""
SHARE, LAST_SHARE = 0.02, 0.03
"""… and the part of a run's time that they may take then, without and with the last one: otherwise there are fewer."""
LAST_SECONDS = 1.0
"""What the last one may take anyway: somebody who gave a run alone may well want more rounds of it."""
FIRST_GUESS = 1 / 200e6
"""Seconds that writing a byte is thought to take before it was done once."""


@dataclass(frozen=True)
class RunState:
    """Where a run stands after a round: what the next one depends on, and what is still to be reported."""

    training: FederationState
    evaluation: Evaluation | None = None
    best: Model | None = None
    best_accuracy: float = -1.0
    averaged: Model | None = None
    """The running mean of the global models, where one is kept."""


@dataclass(frozen=True)
class Checkpoint:
    """A run put away: where it stands, and what it must find again to go on in the same way."""

    state: RunState
    reach: Reach
    config: dict[str, Any]
    """The complete configuration as plain values."""
    federation: str
    """The fingerprint of the data and of who holds what."""
    lanes: int
    """Clients trained side by side: other widths may round differently."""
    made_with: dict[str, Any]


class DamagedError(FedsatError):
    """A checkpoint that cannot be used, and why."""


class Checkpoints:
    """The checkpoints of one run, kept in its folder, and the lock of whoever is carrying out the run.

    They are written every so many rounds, as said, or else every ten as long as they take little of the run's time.
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
        """The checkpoints of a run that we carry out, and no other process; None if it is to have none."""
        if every == 0:
            return None
        checkpoints = Checkpoints(run, every)
        checkpoints.hold()
        return checkpoints

    def hold(self) -> None:
        """Keep other processes from carrying out the same run; ends with `release` or with this process."""
        with speaking_of(self.folder):
            self.folder.mkdir(exist_ok=True)
            try:
                self._lock.acquire(blocking=False)
            except Timeout as error:
                raise UsageError(f"{self.folder.parent} is in use by another process") from error

    def release(self) -> None:
        """Let others have the run."""
        self._lock.release()

    def __del__(self) -> None:
        self.release()

    def due(self, training: FederationState) -> bool:
        """Whether a checkpoint is to be written now."""
        if self._every is not None:
            return training.rounds % self._every == 0
        return training.rounds % EVERY == 0 and self._affordable(training, SHARE)

    def due_at_the_end(self, training: FederationState) -> bool:
        """Whether a run that is completed is to leave a checkpoint."""
        short = self._expected(training) <= LAST_SECONDS
        return self._every is not None or short or self._affordable(training, LAST_SHARE)

    def _affordable(self, training: FederationState, share: float) -> bool:
        """Whether all checkpoints and one more take no more than a share of the time since the run began or went on."""
        return self._spent + self._expected(training) <= share * (time.monotonic() - self._began)

    def _expected(self, training: FederationState) -> float:
        """Seconds that one more checkpoint is thought to take."""
        return self._seconds_per_byte * _size(training)

    def write(self, checkpoint: Checkpoint) -> None:
        """Put a run away, all or nothing, and let go of all but the newest two checkpoints."""
        rounds = checkpoint.state.training.rounds
        if rounds == self._written:
            return
        began = time.monotonic()
        with speaking_of(self.folder):
            tensors, empty = flatten(_tensors(checkpoint.state))
            with whole(self.folder / _name(rounds, "safetensors")) as file:
                digest = write_tensors(file, tensors)
            body = _body(checkpoint) | {"empty": empty, "tensors": digest}
            content = json.dumps({"sha256": _checksum(body), "checkpoint": body}, indent=1)
            write_whole(self.folder / _name(rounds, "json"), content.encode())
        self._written = rounds
        self.keep(self.rounds()[:KEPT])
        taken = time.monotonic() - began
        self._spent += taken
        self._seconds_per_byte = taken / _size(checkpoint.state.training)

    def rounds(self) -> list[int]:
        """The rounds after which there is a checkpoint, whole or not, newest first."""
        return checkpointed_rounds(self.folder.parent)

    def keep(self, rounds: list[int]) -> None:
        """Remove every other checkpoint, descriptions first, and what was left half-written."""
        kept = {_name(number, kind) for number in rounds for kind in ("json", "safetensors")} | {LOCK}
        with speaking_of(self.folder):
            for path in sorted(self.folder.iterdir(), key=lambda path: path.suffix != ".json"):
                if path.name not in kept:
                    path.unlink(missing_ok=True)
            sync_folder(self.folder)

    def end(self, *, keep: int) -> None:
        """Let the run go, and keep so many checkpoints of it."""
        if keep:
            self.keep(self.rounds()[:keep])
            self.release()
            return
        self.release()
        with speaking_of(self.folder):
            shutil.rmtree(self.folder)

    def read(self, rounds: int, device: torch.device) -> Checkpoint:
        """The checkpoint after so many rounds, if it is whole."""
        try:
            body = _read_body(self.folder / _name(rounds, "json"))
            path = self.folder / _name(rounds, "safetensors")
            with path.open("rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() != body["tensors"]:
                    raise DamagedError(f"the checksum of {path.name} is wrong")
            with (self.folder.parent / RECORDS).open("rb") as file:
                content = file.read(body["metrics"]["size"])
            reach = Reach.of(content)
            if reach.digest.hexdigest() != body["metrics"]["sha256"]:
                raise DamagedError(f"{RECORDS} is not what it was then")
            return _checkpoint(body, nest(read_tensors(path, device), body["empty"]), reach)
        except OSError as error:
            raise DamagedError(f"{Path(error.filename or path).name}: {error.strerror or error}") from error
        except (KeyError, TypeError, ValueError) as error:
            raise DamagedError("it does not hold what a checkpoint holds") from error


def checkpointed_rounds(run: Path) -> list[int]:
    """The rounds after which the run in a folder left a checkpoint, whole or not, newest first."""
    stems = [path.stem.partition("-")[2] for path in (run / FOLDER).glob("round-*.json")]
    return sorted((int(stem) for stem in stems if stem.isdecimal()), reverse=True)


def _size(training: FederationState) -> int:
    """Bytes that a training holds between rounds."""
    model = training.server.model
    states = [tree for state in training.states.values() for tree in state.values()]
    return nbytes([model.params, model.buffers, *training.server.memory.values(), *states])


def _name(rounds: int, kind: str) -> str:
    return f"round-{rounds:06}.{kind}"


def _checksum(body: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def _tensors(state: RunState) -> dict[str, Any]:
    """Every tensor of a run, by what it is."""
    training, evaluation = state.training, state.evaluation
    tensors: dict[str, Any] = {
        "model": vars(training.server.model),
        "memory": training.server.memory,
        "clients": {str(client): state for client, state in training.states.items()},
    }
    for name in ("best", "averaged"):
        if (model := getattr(state, name)) is not None:
            tensors[name] = vars(model)
    if evaluation is not None:
        tensors["confusion"] = torch.from_numpy(evaluation.confusion)
        tensors["client_accuracies"] = torch.from_numpy(evaluation.client_accuracies)
    return tensors


def _body(checkpoint: Checkpoint) -> dict[str, Any]:
    """Everything of a checkpoint that is not a tensor."""
    state, reach = checkpoint.state, checkpoint.reach
    return {
        "format": FORMAT,
        "round": state.training.rounds,
        "config": checkpoint.config,
        "federation": checkpoint.federation,
        "lanes": checkpoint.lanes,
        "metrics": {"size": reach.size, "sha256": reach.digest.hexdigest()},
        "best_accuracy": state.best_accuracy,
        "test_loss": None if state.evaluation is None else state.evaluation.loss,
        "made_with": checkpoint.made_with,
    }


def _read_body(path: Path) -> dict[str, Any]:
    try:
        told = json.loads(path.read_bytes())
        body: dict[str, Any] = told["checkpoint"]
        fine = _checksum(body) == told["sha256"]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise DamagedError(f"{path.name} cannot be read") from error
    if not fine:
        raise DamagedError(f"the checksum of {path.name} is wrong")
    if body["format"] != FORMAT:
        raise DamagedError(f"{path.name} has format {body['format']}; this version of fedsat reads {FORMAT}")
    return body


def _checkpoint(body: dict[str, Any], tensors: dict[str, Any], reach: Reach) -> Checkpoint:
    server = Server(Model(**tensors["model"]), tensors["memory"])
    states = {int(client): state for client, state in tensors["clients"].items()}
    evaluation = None
    if "confusion" in tensors:
        confusion, accuracies = (tensors[name].cpu().numpy() for name in ("confusion", "client_accuracies"))
        evaluation = Evaluation(confusion, body["test_loss"], accuracies)
    state = RunState(
        training=FederationState(server, states, body["round"]),
        evaluation=evaluation,
        best=Model(**tensors["best"]) if "best" in tensors else None,
        best_accuracy=body["best_accuracy"],
        averaged=Model(**tensors["averaged"]) if "averaged" in tensors else None,
    )
    return Checkpoint(state, reach, body["config"], body["federation"], body["lanes"], body["made_with"])
