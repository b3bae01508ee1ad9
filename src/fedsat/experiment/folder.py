"""The files of a run: config.toml, metrics.jsonl, summary.json, model.safetensors, best.safetensors,
averaged.safetensors if a running mean of the global models is kept, schema.json if the data are a table,
counts.npz, the counts of the final model's evaluation, and the model card, card.md and card.html.

A run on real nodes also has nodes.json from the start. Checkpoints are written by `checkpoint`.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from filelock import FileLock

from fedsat.algorithms import Model
from fedsat.data import Schema
from fedsat.errors import FedsatError, UsageError
from fedsat.experiment.document import Document
from fedsat.experiment.tensors import write_tensors
from fedsat.metrics import Evaluation, RoundRecord

RECORDS, SUMMARY, CONFIG, SCHEMA = "metrics.jsonl", "summary.json", "config.toml", "schema.json"
LAST_MODEL, BEST_MODEL, AVERAGED_MODEL = "model.safetensors", "best.safetensors", "averaged.safetensors"
MODELS = {"last": LAST_MODEL, "best": BEST_MODEL, "averaged": AVERAGED_MODEL}
"""The files of a run's models."""
COUNTS = "counts.npz"
CARD, CARD_PAGE = "card.md", "card.html"
CLAIM = "claim.lock"
"""Exists while the files of a new run are made."""
RECORDS_SHA256 = "metrics_sha256"
"""The entry of a summary that tells whether the records are those of the end of the run."""
ON_NODES = "nodes.json"
NODE_STATES = "node-states"
"""The subfolder of the nodes' states, if the nodes are started together with the server (`fedsat federate`)."""
NODES_TEXT = "This is a run on real nodes. Each client's data and state are on its node, not here."


@dataclass(frozen=True)
class Reach:
    """The extent of `metrics.jsonl`: rounds, bytes, and their checksum."""

    rounds: int
    size: int
    digest: Any

    @staticmethod
    def of(content: bytes) -> Reach:
        """Return the extent of a file with this content."""
        return Reach(content.count(b"\n"), len(content), hashlib.sha256(content))

    def further(self, line: bytes) -> Reach:
        """Return the extent with one more line."""
        digest = self.digest.copy()
        digest.update(line)
        return Reach(self.rounds + 1, self.size + len(line), digest)


class RunFolder:
    """The folder of one run. Every file is written atomically, except the metrics, which grow."""

    def __init__(self, path: Path, reach: Reach) -> None:
        self.path = path
        self.reach = reach

    @staticmethod
    def create(
        path: Path, config_text: str, schema: Schema | None = None, *, nodes: Mapping[str, Any] | None = None
    ) -> RunFolder:
        """Create the folder of a new run; `config.toml`, which marks it as a run, is written last.

        `nodes` is what must be known to continue a run on real nodes, as plain values.
        """
        refuse_used(path)  # before the folder of another run is touched
        with _claimed(path):
            refuse_used(path)
            write_whole(path / RECORDS, b"")
            if nodes is not None:
                write_whole(path / ON_NODES, json.dumps({"note": NODES_TEXT, **nodes}, indent=2).encode())
            if schema is not None:
                write_whole(path / SCHEMA, schema.to_json().encode())
            write_whole(path / CONFIG, config_text.encode())
        return RunFolder(path, Reach.of(b""))

    def record(self, records: Sequence[RoundRecord]) -> None:
        """Append the rounds that are missing in the file, overwriting a line that was cut short."""
        with speaking_of(self.path):
            for record in records[self.reach.rounds :]:
                content = json.dumps(record.to_json()).encode() + b"\n"
                self._put(content)
                self.reach = self.reach.further(content)

    def settle(self) -> None:
        """Cut off whatever follows the last complete record, and flush the file to disk."""
        with speaking_of(self.path):
            self._put(b"", settle=True)

    def _put(self, content: bytes, settle: bool = False) -> None:
        # Opened for each round and never created, so that a deleted folder is noticed at the next round.
        with (self.path / RECORDS).open("r+b") as file:
            file.seek(self.reach.size)
            file.write(content)
            file.truncate()
            if settle:
                os.fsync(file.fileno())

    def save_model(self, model: Model, name: str, metadata: Mapping[str, str]) -> None:
        """Write a model's parameters and buffers under their names in the network, with the metadata to use it."""
        with speaking_of(self.path), whole(self.path / name) as file:
            write_tensors(file, {**model.params, **model.buffers}, metadata)

    def save_counts(self, evaluation: Evaluation) -> None:
        """Write the counts of the final model's evaluation, from which all measures can be computed again."""
        counts = {"confusion": evaluation.confusion}
        for name in ("histograms", "client_confusion"):
            if (found := getattr(evaluation, name)) is not None:
                counts[name] = found
        with speaking_of(self.path), whole(self.path / COUNTS) as file:
            np.savez_compressed(file, allow_pickle=False, **counts)

    def save_card(self, card: Document) -> None:
        """Write the model card, as text and as a page."""
        with speaking_of(self.path):
            write_whole(self.path / CARD, card.markdown().encode())
            write_whole(self.path / CARD_PAGE, card.html().encode())

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Write the summary, the last file of a run."""
        with speaking_of(self.path):
            write_whole(self.path / SUMMARY, json.dumps(summary, indent=2).encode())


def refuse_used(path: Path) -> None:
    """Refuse to start a run in a folder that contains one."""
    if (path / CONFIG).exists():
        raise UsageError(f"{path} already contains a run; use another --out, or move it away")


@contextmanager
def _claimed(path: Path) -> Iterator[None]:
    """Let no other process make a run in a folder meanwhile, so that two that start at once do not mix."""
    with speaking_of(path):
        path.mkdir(parents=True, exist_ok=True)
        with FileLock(path / CLAIM):
            try:
                yield
            finally:
                if (path / CONFIG).exists():  # now everybody else is refused, whatever file they lock
                    (path / CLAIM).unlink(missing_ok=True)


@contextmanager
def whole(path: Path) -> Iterator[BinaryIO]:
    """Open a file that is replaced atomically: readers see the old content or the new, never a part.

    The content is written under another name and flushed, the file is renamed, and the folder is flushed.
    """
    partial = path.with_name(path.name + ".part")
    try:
        with partial.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        with suppress(OSError):
            partial.unlink(missing_ok=True)  # on a full disk, the space is needed
        raise
    sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Flush renames and removals in a folder to disk, where the system supports it."""
    if os.name == "posix":
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def write_whole(path: Path, content: bytes) -> None:
    """Replace a file atomically."""
    with whole(path) as file:
        file.write(content)


@contextmanager
def speaking_of(path: Path) -> Iterator[None]:
    """Turn an operating system error about a folder into a message for the user."""
    try:
        yield
    except OSError as error:
        raise FedsatError(f"cannot write to {path}: {error.strerror or error}") from error


def free_folder(parent: Path, name: str, reserved: Container[Path] = ()) -> Path:
    """Return `parent/name`, or the first of `name-2`, `name-3`, … that contains no run and is not reserved for one."""
    path, number = parent / name, 1
    while (path / CONFIG).exists() or path in reserved:
        number += 1
        path = parent / f"{name}-{number}"
    return path


def read_records(folder: Path) -> list[RoundRecord]:
    """Return the recorded rounds, without a last line that was cut short, for example by a power failure."""
    try:
        content = (folder / RECORDS).read_bytes()
    except OSError as error:
        raise UsageError(f"{folder} contains no run: {RECORDS} cannot be read ({error.strerror})") from error
    return parse_records(content, folder / RECORDS)


def records_sha256(folder: Path) -> str | None:
    """Return the checksum of the records, or None if there are none."""
    path = folder / RECORDS
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None


def parse_records(content: bytes, path: Path) -> list[RoundRecord]:
    """Return the rounds in the content of `path`, without an incomplete last line."""
    records = []
    for number, line in enumerate(content.split(b"\n")[:-1], start=1):
        try:
            records.append(RoundRecord.from_json(_table(line)))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UsageError(f"{path} is damaged in line {number}") from error
    return records


def read_summary(folder: Path) -> dict[str, Any]:
    """Return the contents of `summary.json`, or an empty table if the run has not written it yet."""
    try:
        return _table((folder / SUMMARY).read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise UsageError(f"{folder / SUMMARY} cannot be read: {error}") from error


def read_nodes(folder: Path) -> dict[str, Any]:
    """Return the contents of `nodes.json`, or an empty table if the run is a simulation."""
    try:
        return _table((folder / ON_NODES).read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise UsageError(f"{folder / ON_NODES} cannot be read: {error}") from error


def _table(content: bytes) -> dict[str, Any]:
    """Parse a JSON object, or raise a `ValueError`."""
    found = json.loads(content)
    if not isinstance(found, dict):
        raise ValueError("it is not a JSON object")
    return found
