"""What a run leaves on disk: config.toml, metrics.jsonl, summary.json, model.safetensors, best.safetensors."""

from __future__ import annotations

import json
import os
from collections.abc import Container, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from fedsat.algorithms import Model
from fedsat.errors import FedsatError, UsageError

METRICS, SUMMARY, CONFIG = "metrics.jsonl", "summary.json", "config.toml"
LAST_MODEL, BEST_MODEL = "model.safetensors", "best.safetensors"


class RunFolder:
    """The folder of one run, written as the run goes on. Every file but the growing metrics appears whole."""

    def __init__(self, path: Path, config_text: str) -> None:
        if (path / CONFIG).exists():
            raise UsageError(f"{path} already holds a run; give another --out, or move it away")
        self.path = path
        with speaking_of(path):
            path.mkdir(parents=True, exist_ok=True)
            write_whole(path / CONFIG, config_text.encode())
            self._metrics: TextIO = (path / METRICS).open("w", encoding="utf-8")

    def add_round(self, line: Mapping[str, Any]) -> None:
        """Append one round to the metrics; it is on its way to the disk when this returns."""
        with speaking_of(self.path):
            self._metrics.write(json.dumps(line) + "\n")
            self._metrics.flush()

    def save_model(self, model: Model, name: str) -> None:
        """Write a model's parameters and buffers under their names in the network."""
        from safetensors.torch import save  # noqa: PLC0415 (not needed to train)

        tensors = {key: tensor.contiguous().cpu() for key, tensor in {**model.params, **model.buffers}.items()}
        with speaking_of(self.path):
            write_whole(self.path / name, save(tensors))

    def finish(self, summary: Mapping[str, Any], model: Model) -> None:
        """Write what the run came to and its last good model."""
        with speaking_of(self.path):
            self._metrics.close()
            self.save_model(model, LAST_MODEL)
            write_whole(self.path / SUMMARY, json.dumps(summary, indent=2).encode())


def write_whole(path: Path, content: bytes) -> None:
    """Write a file so that a reader finds the old content or the new, never a part."""
    partial = path.with_name(path.name + ".part")
    with partial.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


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


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """The rounds that a run has recorded. A last line cut short, as by a power failure, does not count."""
    try:
        lines = (folder / METRICS).read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise UsageError(f"{folder} holds no run: {METRICS} cannot be read ({error.strerror})") from error
    metrics = []
    for number, line in enumerate(lines, start=1):
        try:
            metrics.append(json.loads(line))
        except json.JSONDecodeError as error:
            if number < len(lines):
                raise UsageError(f"{folder / METRICS} is damaged in line {number}") from error
    return metrics


def read_summary(folder: Path) -> dict[str, Any]:
    """What `summary.json` holds; nothing if the run has not come to write it."""
    try:
        summary: dict[str, Any] = json.loads((folder / SUMMARY).read_text(encoding="utf-8"))
        return summary
    except FileNotFoundError:
        return {}
    except (OSError, json.JSONDecodeError) as error:
        raise UsageError(f"{folder / SUMMARY} cannot be read: {error}") from error
