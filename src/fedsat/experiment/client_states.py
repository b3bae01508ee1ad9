"""Client states on disk, for methods that store a tree per client in federations whose states exceed the memory.

The states of a run are a dictionary by client. Most runs keep all of them in memory. When the states take more than
`state_memory`, further states are written to files, one each. In their place, the dictionary holds a `StoredState`, a
mapping that reads a tree on access. A file is removed when nothing refers to its state any longer, so a round that
fails leaves the previous round's states unchanged. Checkpoints link to the files instead of copying them.
"""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
import weakref
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from fedsat.engine.capacity import free_memory
from fedsat.experiment.folder import speaking_of, sync_folder, whole
from fedsat.experiment.tensors import flatten, nest, read_tensors, write_tensors
from fedsat.tree import KeptState, KeptStates, State, Tree, nbytes

PREFIX = "client-states-"
SHARE = 0.25
"""Share of the memory that is free at the start of a run, for the clients' states."""


class StoredState(Mapping[str, Tree]):
    """A client's state in a file, which is removed together with this object."""

    def __init__(self, path: Path, digest: str, trees: Iterable[str], device: torch.device) -> None:
        self.path, self.digest, self._trees, self._device = path, digest, tuple(trees), device
        weakref.finalize(self, _remove, path)

    def __getitem__(self, name: str) -> Tree:
        if name not in self._trees:
            raise KeyError(name)
        return read_state(self.path, (name,), self._device, under=name)[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._trees)

    def __len__(self) -> int:
        return len(self._trees)


class StateFolder:
    """The states of a run's clients on disk: a folder in the run's own, or a temporary one."""

    def __init__(self, run: Path | None, gigabytes: float | None, device: torch.device) -> None:
        self.memory = round(SHARE * free_memory(device) if gigabytes is None else gigabytes * 1e9)
        self._device = device
        self._names = map("{:09}.safetensors".format, itertools.count())
        self._run = run
        for left in [] if run is None else run.glob(PREFIX + "*"):  # by a killed process
            shutil.rmtree(left, ignore_errors=True)

    def overflow(self, states: KeptStates, clients: Iterable[int]) -> None:
        """Move the states of these clients to disk if those in memory take more than is allowed."""
        in_memory = sum(not isinstance(state, StoredState) for state in states.values())
        for client in clients:
            if in_memory * nbytes(states[client].values()) <= self.memory:
                return
            states[client] = self._store(states[client])
            in_memory -= 1

    def _store(self, state: KeptState) -> StoredState:
        path = self._folder / next(self._names)
        with speaking_of(path):
            digest = write_state(path, state, lasting=False)
        return StoredState(path, digest, state, self._device)

    @cached_property
    def _folder(self) -> Path:
        """The folder, created when it is first needed, and removed together with this object."""
        with speaking_of(self._run or Path(tempfile.gettempdir())):
            path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=self._run))
        weakref.finalize(self, shutil.rmtree, path, ignore_errors=True)
        return path

    def adopt(self, kept: Path, digest: str, trees: Iterable[str]) -> StoredState:
        """Return the state in a file of a checkpoint, which stays there."""
        path = self._folder / next(self._names)
        link(kept, path)
        return StoredState(path, digest, trees, self._device)


def write_state(path: Path, state: KeptState, *, lasting: bool = True) -> str:
    """Write a state and return its sha256. A `lasting` file is replaced atomically and flushed to disk."""
    tensors, _ = flatten(state)
    with whole(path) if lasting else path.open("wb") as file:
        return write_tensors(file, tensors)


def read_state(path: Path, trees: Iterable[str], device: torch.device, under: str = "") -> State:
    """Return the state in a file, which has these trees, or only the one `under` a name; empty ones are not stored."""
    found: Any = nest(read_tensors(path, device, under), ())
    return {name: found.get(name, {}) for name in trees}


def keep(states: Mapping[int, StoredState], folder: Path) -> None:
    """Put the files of these states into the folder of a checkpoint, named after the clients, and flush them."""
    folder.mkdir()
    for client, state in states.items():
        link(state.path, folder / f"{client}.safetensors")
        handle = os.open(state.path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    sync_folder(folder)


def link(old: Path, new: Path) -> None:
    """Give a file a second name, or copy it if the file system has no links."""
    try:
        os.link(old, new)
    except OSError:
        shutil.copyfile(old, new)


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)
