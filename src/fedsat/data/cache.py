"""The user's cache of downloaded datasets, one folder each, written atomically."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
from filelock import FileLock, Timeout

from fedsat.data.catalog import Arrays, info
from fedsat.data.npy import read_npy
from fedsat.errors import DataError


def cache_folder() -> Path:
    """Return the folder of downloaded datasets: `$FEDSAT_DATA`, or the user's cache folder."""
    chosen = os.environ.get("FEDSAT_DATA")
    if chosen:
        return Path(chosen).expanduser()
    from platformdirs import user_cache_path  # noqa: PLC0415 (only without FEDSAT_DATA)

    return user_cache_path("fedsat", appauthor=False)


def is_cached(name: str) -> bool:
    """Whether the dataset has been downloaded."""
    return all((cache_folder() / name / f"{field}.npy").is_file() for field in Arrays._fields)


def read(name: str) -> Arrays:
    """Read a downloaded dataset and verify its checksum."""
    folder = cache_folder() / name
    try:
        arrays = Arrays(*(read_npy(folder / f"{field}.npy") for field in Arrays._fields))
        return info(name).verify(arrays, str(folder))
    except (DataError, OSError, ValueError) as error:
        raise DataError(
            f"the stored {name} is damaged ({error}); delete {folder} and run `fedsat data get {name}`"
        ) from error


def write(name: str, arrays: Arrays) -> Path:
    """Store a dataset atomically: write it to a temporary folder, flush it to disk, and rename the folder."""
    root = cache_folder()
    target = root / name
    with _writable(root):
        partial = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=root))
        try:
            for field, array in zip(Arrays._fields, arrays, strict=True):
                with (partial / f"{field}.npy").open("wb") as file:
                    np.save(file, array, allow_pickle=False)
                    file.flush()
                    os.fsync(file.fileno())
            partial.chmod(0o755)  # mkdtemp's folders are private; a shared cache should be readable
            shutil.rmtree(target, ignore_errors=True)  # it is incomplete, otherwise `is_cached` would be true
            partial.rename(target)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return target


@contextmanager
def locked(name: str, waiting: Callable[[], None]) -> Iterator[None]:
    """Lock a dataset; if another process has the lock, call `waiting` first."""
    root = cache_folder()
    with ExitStack() as held:
        with _writable(root):
            lock = FileLock(root / f".{name}.lock")
            try:
                held.enter_context(lock.acquire(blocking=False))
            except Timeout:
                waiting()
                held.enter_context(lock.acquire())
        yield


@contextmanager
def _writable(root: Path) -> Iterator[None]:
    try:
        root.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise DataError(f"cannot write to the cache {root} ({error}); set FEDSAT_DATA to another folder") from error
