"""What a run leaves on disk: config.toml, metrics.jsonl, summary.json, model.safetensors, best.safetensors and, if a
running mean of the global models is kept, averaged.safetensors.

One that real nodes play leaves nodes.txt as well, by which it is known from its beginning.

What it leaves to be taken up again is written by `checkpoint`.
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

from fedsat.algorithms import Model
from fedsat.errors import FedsatError, UsageError
from fedsat.metrics import RoundRecord

RECORDS, SUMMARY, CONFIG = "metrics.jsonl", "summary.json", "config.toml"
LAST_MODEL, BEST_MODEL, AVERAGED_MODEL = "model.safetensors", "best.safetensors", "averaged.safetensors"
ON_NODES = "nodes.txt"
NODES_TEXT = "Real nodes play this run. The data and the state of each client are with its node, not here.\n"


@dataclass(frozen=True)
class Reach:
    """How far `metrics.jsonl` goes: its rounds, its bytes, and their checksum as it stands."""

    rounds: int
    size: int
    digest: Any

    @staticmethod
    def of(content: bytes) -> Reach:
        """The reach of a file with this content."""
        return Reach(content.count(b"\n"), len(content), hashlib.sha256(content))

    def further(self, line: bytes) -> Reach:
        """The reach with one more line."""
        digest = self.digest.copy()
        digest.update(line)
        return Reach(self.rounds + 1, self.size + len(line), digest)


class RunFolder:
    """The folder of one run, written as the run goes on. Every file but the growing metrics appears whole."""

    def __init__(self, path: Path, reach: Reach) -> None:
        self.path = path
        self.reach = reach

    @staticmethod
    def create(path: Path, config_text: str, *, on_nodes: bool = False) -> RunFolder:
        """A folder for a run that begins. It holds a run from the moment that it has a `config.toml`."""
        if (path / CONFIG).exists():
            raise UsageError(f"{path} already holds a run; give another --out, or move it away")
        with speaking_of(path):
            path.mkdir(parents=True, exist_ok=True)
            write_whole(path / RECORDS, b"")
            if on_nodes:
                write_whole(path / ON_NODES, NODES_TEXT.encode())
            write_whole(path / CONFIG, config_text.encode())
        return RunFolder(path, Reach.of(b""))

    def record(self, records: Sequence[RoundRecord]) -> None:
        """Append the rounds that the file lacks, and nothing else behind them: a torn line is written over."""
        with speaking_of(self.path):
            for record in records[self.reach.rounds :]:
                content = json.dumps(record.to_json()).encode() + b"\n"
                self._put(content)
                self.reach = self.reach.further(content)

    def settle(self) -> None:
        """Let the metrics end where they are known to reach, and bring them to the disk."""
        with speaking_of(self.path):
            self._put(b"", settle=True)

    def _put(self, content: bytes, settle: bool = False) -> None:
        # Opened anew each time, and never created: a folder that has vanished is noticed at the next round.
        with (self.path / RECORDS).open("r+b") as file:
            file.seek(self.reach.size)
            file.write(content)
            file.truncate()
            if settle:
                os.fsync(file.fileno())

    def save_model(self, model: Model, name: str) -> None:
        """Write a model's parameters and buffers under their names in the network."""
        from safetensors.torch import save  # noqa: PLC0415 (not needed to train)

        tensors = {key: tensor.contiguous().cpu() for key, tensor in {**model.params, **model.buffers}.items()}
        with speaking_of(self.path):
            write_whole(self.path / name, save(tensors))

    def finish(self, summary: Mapping[str, Any], model: Model) -> None:
        """Write what the run came to and its last good model."""
        self.save_model(model, LAST_MODEL)
        with speaking_of(self.path):
            write_whole(self.path / SUMMARY, json.dumps(summary, indent=2).encode())


@contextmanager
def whole(path: Path) -> Iterator[BinaryIO]:
    """A file to write, of which a reader finds the old content or the new, never a part, whatever happens.

    It is written under another name, brought to the disk, renamed, and the renaming brought to the disk.
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
    """Bring what was renamed or removed in a folder to the disk, where the system can."""
    if os.name == "posix":
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def write_whole(path: Path, content: bytes) -> None:
    """Write a file so that a reader finds the old content or the new, never a part."""
    with whole(path) as file:
        file.write(content)


@contextmanager
def speaking_of(path: Path) -> Iterator[None]:
    """Turn the system's word on a folder into one a user can act on."""
    try:
        yield
    except OSError as error:
        raise FedsatError(f"cannot write to {path}: {error.strerror or error}") from error


def free_folder(parent: Path, name: str, promised: Container[Path] = ()) -> Path:
    """`parent/name`, or the first of `name-2`, `name-3`, … that holds no run yet and is not promised to one."""
    path, number = parent / name, 1
    while (path / CONFIG).exists() or path in promised:
        number += 1
        path = parent / f"{name}-{number}"
    return path


def read_records(folder: Path) -> list[RoundRecord]:
    """The rounds that a run has recorded. A last line cut short, as by a power failure, does not count."""
    try:
        content = (folder / RECORDS).read_bytes()
    except OSError as error:
        raise UsageError(f"{folder} holds no run: {RECORDS} cannot be read ({error.strerror})") from error
    return parse_records(content, folder / RECORDS)


def parse_records(content: bytes, path: Path) -> list[RoundRecord]:
    """The rounds in the content of `path`; what stands behind the last end of a line does not count."""
    records = []
    for number, line in enumerate(content.split(b"\n")[:-1], start=1):
        try:
            records.append(RoundRecord.from_json(_table(line)))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UsageError(f"{path} is damaged in line {number}") from error
    return records


def read_summary(folder: Path) -> dict[str, Any]:
    """What `summary.json` holds; nothing if the run has not come to write it."""
    try:
        return _table((folder / SUMMARY).read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise UsageError(f"{folder / SUMMARY} cannot be read: {error}") from error


def _table(content: bytes) -> dict[str, Any]:
    """A JSON object; a `ValueError` for everything else."""
    found = json.loads(content)
    if not isinstance(found, dict):
        raise ValueError("it does not hold names and values")
    return found
