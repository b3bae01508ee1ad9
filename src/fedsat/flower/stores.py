"""Where a node keeps its memory of a run: in its Flower context, or in files that outlive its processes."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Iterator, Set
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, ClassVar, Protocol

import torch
from filelock import FileLock
from flwr.app import ConfigRecord, RecordDict

from fedsat.experiment.client_states import read_state, write_state
from fedsat.experiment.folder import speaking_of
from fedsat.experiment.sealed import DamagedError, check_file, read_sealed, write_sealed
from fedsat.flower.records import pack_tree, unpack_tree
from fedsat.flower.run_spec import RUN_ID
from fedsat.tree import State

log = logging.getLogger("flwr")

RUNS = 8
"""How many runs a node remembers on disk, and how many in which it has not trained; older ones are removed."""

INDEX, LOCK, KIND = "memory.json", "lock", "memory"
STATES = "round-*.safetensors"


class Store(Protocol):
    """Facts that can be written as JSON, and the client's states after some rounds."""

    lasts: ClassVar[bool]
    """Whether it outlives the node's processes."""

    @property
    def facts(self) -> dict[str, Any]:
        """The facts, not to be changed in place."""

    def save(self, facts: dict[str, Any]) -> None:
        """Replace the facts."""

    def rounds(self) -> Set[int]:
        """Return the rounds whose states are stored."""

    def get(self, round_number: int) -> State | None:
        """Return the state after a round, or None if it is damaged."""

    def put(self, round_number: int, state: State) -> None:
        """Store the state after a round."""

    def keep(self, rounds: Set[int]) -> None:
        """Remove the states after all other rounds."""


class Records:
    """The records of a Flower context, which a SuperNode keeps in memory while it runs."""

    lasts: ClassVar[bool] = False

    def __init__(self, records: RecordDict) -> None:
        self._records = records

    @property
    def facts(self) -> dict[str, Any]:
        """The facts."""
        record = self._records.config_records.get("facts", ConfigRecord())
        found: dict[str, Any] = json.loads(str(record.get("json", "{}")))
        return found

    def save(self, facts: dict[str, Any]) -> None:
        """Replace the facts."""
        self._records["facts"] = ConfigRecord({"json": json.dumps(facts)})

    def rounds(self) -> Set[int]:
        """Return the rounds whose states are stored."""
        return {int(name) for name in self._records.config_records if name.isdecimal()}

    def get(self, round_number: int) -> State:
        """Return the state after a round."""
        trees = self._records.array_records
        names = json.loads(str(self._records.config_records[f"{round_number}"]["trees"]))
        places = {name: f"{round_number}/{name}" for name in names}
        return {name: unpack_tree(trees[place]) if place in trees else {} for name, place in places.items()}

    def put(self, round_number: int, state: State) -> None:
        """Store the state after a round."""
        self._records[f"{round_number}"] = ConfigRecord({"trees": json.dumps(list(state))})
        for name, tree in state.items():
            if tree:
                self._records[f"{round_number}/{name}"] = pack_tree(tree)

    def keep(self, rounds: Set[int]) -> None:
        """Remove the states after all other rounds."""
        for name in list(self._records):
            number = name.partition("/")[0]
            if number.isdecimal() and int(number) not in rounds:
                del self._records[name]


class Files:
    """A folder for a run, or for the account: a file of tensors for each state, and `memory.json` with the facts and
    checksums.

    `memory.json` is replaced as a whole, after the tensors that it refers to. So whenever the process is killed, it
    describes states that are complete.
    """

    lasts: ClassVar[bool] = True

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._content: dict[str, Any] = {"facts": {}, "states": {}}
        if (folder / INDEX).exists():
            self._content = read_sealed(folder / INDEX, KIND)

    @staticmethod
    @contextmanager
    def locked(parent: Path, name: str) -> Iterator[Files]:
        """Yield the files of a run, or of the account, which no other process changes meanwhile."""
        folder = parent / name
        with ExitStack() as held:
            with speaking_of(parent):
                if not folder.exists():
                    parent.mkdir(parents=True, exist_ok=True)
                    _make_room(parent)
                    folder.mkdir(mode=0o700, exist_ok=True)
                held.enter_context(FileLock(folder / LOCK))
                files = Files(folder)
            yield files  # errors of the node's work are not about this folder

    @property
    def facts(self) -> dict[str, Any]:
        """The facts."""
        found: dict[str, Any] = self._content["facts"]
        return found

    def save(self, facts: dict[str, Any]) -> None:
        """Replace the facts."""
        self._write({**self._content, "facts": facts})

    def rounds(self) -> Set[int]:
        """Return the rounds whose states are stored."""
        return set(map(int, self._content["states"]))

    def get(self, round_number: int) -> State | None:
        """Return the state after a round, or None if its file is damaged."""
        path, described = self._file(round_number), self._content["states"][f"{round_number}"]
        try:
            check_file(path, described["sha256"])
            return read_state(path, described["trees"], torch.device("cpu"))
        except (OSError, DamagedError) as error:
            log.error("the client's state after round %d is lost: %s", round_number, error)
            return None

    def put(self, round_number: int, state: State) -> None:
        """Store the state after a round."""
        with speaking_of(self._folder):
            described = {"sha256": write_state(self._file(round_number), state), "trees": list(state)}
        self._write({**self._content, "states": {**self._content["states"], f"{round_number}": described}})

    def keep(self, rounds: Set[int]) -> None:
        """Remove the states after all other rounds."""
        dropped = self.rounds() - rounds
        if dropped:
            left = {number: one for number, one in self._content["states"].items() if int(number) in rounds}
            self._write({**self._content, "states": left})
        known = {self._file(number).name for number in self.rounds()} | {INDEX, LOCK}
        with speaking_of(self._folder):
            for path in self._folder.iterdir():  # also what a killed process left
                if path.name not in known:
                    path.unlink(missing_ok=True)

    def _file(self, round_number: int) -> Path:
        return self._folder / f"round-{round_number:06}.safetensors"

    def _write(self, content: dict[str, Any]) -> None:
        with speaking_of(self._folder):
            write_sealed(self._folder / INDEX, KIND, content)
        self._content = content


def _make_room(parent: Path) -> None:
    """Remove the oldest runs, and nothing else that the owner has put into the folder.

    Runs in which the node has not trained make room only for one another, so that greetings remove no state.
    """
    found = (path for path in parent.glob(f"*/{INDEX}") if RUN_ID.fullmatch(path.parent.name))
    runs = sorted(found, key=lambda path: path.stat().st_mtime, reverse=True)
    trained = [path for path in runs if any(path.parent.glob(STATES))]
    for path in trained[RUNS - 1 :] + [path for path in runs if path not in trained][RUNS - 1 :]:
        shutil.rmtree(path.parent, ignore_errors=True)
