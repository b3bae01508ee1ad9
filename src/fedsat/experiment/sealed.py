"""JSON files with a checksum of their content, and checks of files against a checksum."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from fedsat.errors import FedsatError
from fedsat.experiment.folder import write_whole


class DamagedError(FedsatError):
    """A file is not as it was written."""


def write_sealed(path: Path, kind: str, body: dict[str, Any]) -> None:
    """Replace a file atomically by the body, under the name of its kind, and its checksum."""
    write_whole(path, json.dumps({"sha256": _checksum(body), kind: body}, indent=1).encode())


def read_sealed(path: Path, kind: str) -> dict[str, Any]:
    """Return the body of a file that `write_sealed` wrote."""
    try:
        stored = json.loads(path.read_bytes())
        body: dict[str, Any] = stored[kind]
        intact = _checksum(body) == stored["sha256"]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise DamagedError(f"{path.name} cannot be read") from error
    if not intact:
        raise DamagedError(f"the checksum of {path.name} is wrong")
    return body


def check_file(path: Path, digest: str) -> None:
    """Raise an error unless a file has this sha256."""
    with path.open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != digest:
            raise DamagedError(f"the checksum of {path.name} is wrong")


def _checksum(body: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
