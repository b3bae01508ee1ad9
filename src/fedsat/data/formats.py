"""Readers of the published dataset files: idx, the CIFAR binary version, CIFAR-10 as PNG sheets, archives.

All of them work on bytes in memory. Nothing is unpickled and no archive member is ever written to disk, so a malicious
file can only be refused. `where` names the file in errors.
"""

from __future__ import annotations

import io
import json
import lzma
import struct
import tarfile
import zlib
from collections.abc import Callable, Collection, Mapping
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray

from fedsat.data.catalog import Arrays
from fedsat.errors import DataError

Bytes = NDArray[np.uint8]
LARGEST = 200_000_000
"""No published file is larger when unpacked. A larger file is a different one, or a compression bomb."""

IDX_FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
CIFAR10_FILES = (*(f"data_batch_{k}.bin" for k in range(1, 6)), "test_batch.bin")
CIFAR100_FILES = ("train.bin", "test.bin")
SHEET_FILES = (
    *(f"data_batch_{k}.png" for k in range(1, 6)),
    "test_batch.png",
    "train_lables.json",  # sic
    "test_lables.json",
)


def read_idx_set(files: Mapping[str, bytes], where: str) -> Arrays:
    """Read MNIST or Fashion-MNIST from its four idx files."""
    arrays = [read_idx(files[name], f"{where}/{name}") for name in IDX_FILES]
    for array, name, axes in zip(arrays, IDX_FILES, (3, 1, 3, 1), strict=True):
        if array.ndim != axes:
            raise DataError(f"{where}/{name}: expected {axes} axes, found shape {list(array.shape)}")
    return Arrays(arrays[0][:, None], arrays[1], arrays[2][:, None], arrays[3])


def read_cifar10(files: Mapping[str, bytes], where: str) -> Arrays:
    """Read CIFAR-10 from the six files of its binary version."""
    parts = [read_cifar_records(files[name], f"{where}/{name}", labels=1) for name in CIFAR10_FILES]
    images, labels = (np.concatenate(column) for column in zip(*parts[:5], strict=True))
    return Arrays(images, labels, *parts[5])


def read_cifar100(files: Mapping[str, bytes], where: str) -> Arrays:
    """Read CIFAR-100 with its 100 fine labels from the two files of its binary version."""
    train, test = (read_cifar_records(files[name], f"{where}/{name}", labels=2) for name in CIFAR100_FILES)
    return Arrays(*train, *test)


def read_sheets(files: Mapping[str, bytes], where: str) -> Arrays:
    """Read CIFAR-10 from six PNG sheets with one image per row, and two lists of labels."""
    images = [read_sheet(files[name], f"{where}/{name}") for name in SHEET_FILES[:6]]
    train, test = (read_label_list(files[name], f"{where}/{name}") for name in SHEET_FILES[6:])
    return Arrays(np.concatenate(images[:5]), train, images[5], test)


def read_idx(data: bytes, where: str) -> Bytes:
    """Return the array of an idx file of unsigned bytes, gzipped or plain."""
    if data[:2] == b"\x1f\x8b":
        data = gunzip(data, where)
    if len(data) < 4 or data[:3] != b"\x00\x00\x08":
        raise DataError(f"{where}: not an idx file of bytes (begins with {data[:4].hex(' ') or 'nothing'})")
    axes = data[3]
    start = 4 + 4 * axes
    if axes == 0 or len(data) < start:
        raise DataError(f"{where}: the idx header is cut off")
    shape = struct.unpack(f">{axes}I", data[4:start])
    expected = int(np.prod(shape, dtype=object))
    if len(data) - start != expected:
        raise DataError(
            f"{where}: expected {expected:,} bytes for shape {list(shape)}, found {len(data) - start:,}"
            " (cut off, or not the official file)"
        )
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape)


def read_cifar_records(data: bytes, where: str, labels: int) -> tuple[Bytes, Bytes]:
    """Return images and labels of a CIFAR binary file; records have `labels` label bytes, and the last one is used."""
    record = labels + 3 * 32 * 32
    if not data or len(data) % record:
        raise DataError(
            f"{where}: expected records of {record:,} bytes, found {len(data):,} bytes"
            " (cut off, or not the binary version)"
        )
    table = np.frombuffer(data, np.uint8).reshape(-1, record)
    return table[:, labels:].reshape(-1, 3, 32, 32), table[:, labels - 1].copy()


def read_sheet(data: bytes, where: str) -> Bytes:
    """Return the images of a PNG sheet 1024 pixels wide; each row is one 32×32 RGB image."""
    from PIL import Image  # noqa: PLC0415 (only for this form)

    try:
        with Image.open(io.BytesIO(data), formats=["PNG"]) as sheet:
            if sheet.width != 1024 or sheet.height > 100_000:
                raise DataError(f"{where}: expected a sheet 1024 pixels wide, found {sheet.width}×{sheet.height}")
            pixels = np.asarray(sheet.convert("RGB"))
    except (OSError, SyntaxError, ValueError) as error:
        raise DataError(f"{where}: not a readable PNG file ({error})") from error
    return np.ascontiguousarray(pixels.reshape(-1, 32, 32, 3).transpose(0, 3, 1, 2))


def read_label_list(data: bytes, where: str) -> Bytes:
    """Return labels from a JSON list of integers."""
    try:
        values = json.loads(data)
    except ValueError as error:
        raise DataError(f"{where}: not a JSON list ({error})") from error
    if not isinstance(values, list) or not all(type(v) is int and 0 <= v < 256 for v in values):
        raise DataError(f"{where}: expected a list of labels from 0 to 255")
    return np.array(values, np.uint8)


def gunzip(data: bytes, where: str) -> bytes:
    """Return the content of a gzip file, which must be complete and at most `LARGEST` bytes."""
    stream = zlib.decompressobj(wbits=31)
    try:
        content = stream.decompress(data, LARGEST)
    except zlib.error as error:
        raise DataError(f"{where}: damaged gzip file ({error})") from error
    if not stream.eof:
        raise DataError(f"{where}: the gzip file is cut off or unpacks to more than {LARGEST:,} bytes")
    return content


def read_archive(path: Path, wanted: Collection[str]) -> dict[str, bytes]:
    """Return the wanted members of a .tar.gz, .tgz or .deb, with or without a final `.gz`."""
    try:
        if path.suffix == ".deb":
            with tarfile.open(fileobj=io.BytesIO(_deb_data(path))) as archive:
                return _members(archive, wanted, path)
        with tarfile.open(path) as archive:
            return _members(archive, wanted, path)
    except (tarfile.TarError, EOFError, OSError, zlib.error, lzma.LZMAError) as error:
        raise DataError(f"{path}: damaged or cut off archive ({error})") from error


def _members(archive: tarfile.TarFile, wanted: Collection[str], path: Path) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for member in archive:
        name = PurePosixPath(member.name).name.removesuffix(".gz")
        if name not in wanted or not member.isfile():
            continue
        if member.size > LARGEST:
            raise DataError(f"{path}: {member.name} claims to have {member.size:,} bytes; too large for a dataset file")
        content = archive.extractfile(member)
        assert content is not None  # it is a regular file
        found[name] = content.read()
    missing = [name for name in wanted if name not in found]
    if missing:
        raise DataError(f"{path}: the archive has no {missing[0]}")
    return found


def _deb_data(path: Path) -> bytes:
    """Return the data.tar member of a Debian package, which is an `ar` archive."""
    data = path.read_bytes()
    if not data.startswith(b"!<arch>\n"):
        raise DataError(f"{path}: not a Debian package")
    at = 8
    while at + 60 <= len(data):
        name, size = data[at : at + 16].decode("ascii", "replace"), data[at + 48 : at + 58].strip()
        if not size.isdigit():
            break
        if name.startswith("data.tar"):
            return data[at + 60 : at + 60 + int(size)]
        at += 60 + int(size) + int(size) % 2
    raise DataError(f"{path}: the Debian package has no data, or is cut off")


Reader = Callable[[Mapping[str, bytes], str], Arrays]
"""Decodes the files of a published form, given by official name; the text names their source in errors."""
