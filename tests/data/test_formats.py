"""Readers of dataset files: correct on files made here, and a clear error for everything else."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedsat.data import formats
from fedsat.data.catalog import Arrays
from fedsat.errors import DataError

RNG = np.random.default_rng(3)
PICTURES = RNG.integers(0, 256, (4, 3, 32, 32), dtype=np.uint8)


def tar(members: dict[str, bytes], mode: str = "w:gz") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as archive:
        for name, data in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


def deb(members: dict[str, bytes]) -> bytes:
    """Return a Debian package with these files: an `ar` archive of three members."""
    parts = {"debian-binary": b"2.0\n", "control.tar.xz": b"odd", "data.tar.xz": tar(members, "w:xz")}
    result = b"!<arch>\n"
    for name, data in parts.items():
        result += (
            f"{name:<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{len(data):<10}`\n".encode() + data + b"\n" * (len(data) % 2)
        )
    return result


def png(picture: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(picture).save(buffer, "PNG")
    return buffer.getvalue()


def test_idx_plain_and_gzipped(tiny: Arrays, tiny_files: dict[str, bytes]) -> None:
    zipped = {name: gzip.compress(data, mtime=0) for name, data in tiny_files.items()}
    for files in (tiny_files, zipped):
        for found, expected in zip(formats.read_idx_set(files, "here"), tiny, strict=True):
            np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "begins with nothing"),
        (b"PK\x03\x04 a zip", "not an idx file"),
        (b"\x00\x00\x0d\x01\x00\x00\x00\x00", "not an idx file"),  # floats
        (b"\x00\x00\x08\x03\x00\x00\x00\x02", "header is cut off"),
        (b"\x00\x00\x08\x01\x00\x00\x00\x05abcd", "expected 5 bytes .* found 4"),
        (b"\x00\x00\x08\x01\x00\x00\x00\x03abcd", "expected 3 bytes .* found 4"),
        (b"\x00\x00\x08\x03" + b"\xff" * 12, "found 0"),  # claims 2**96 bytes
        (gzip.compress(b"\x00\x00\x08\x01\x00\x00\x00\x04abcd", mtime=0)[:-9], "gzip file is cut off"),
        (b"\x1f\x8b rubbish", "damaged gzip"),
    ],
)
def test_idx_refuses(data: bytes, words: str) -> None:
    with pytest.raises(DataError, match=f"^some/file: .*{words}"):
        formats.read_idx(data, "some/file")


def test_idx_set_refuses_labels_in_place_of_images(tiny_files: dict[str, bytes]) -> None:
    tiny_files["train-images-idx3-ubyte"] = tiny_files["train-labels-idx1-ubyte"]
    with pytest.raises(DataError, match=r"here/train-images-idx3-ubyte: expected 3 axes, found shape \[20\]"):
        formats.read_idx_set(tiny_files, "here")


def test_gunzip_stops_at_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "LARGEST", 1000)
    with pytest.raises(DataError, match="more than 1,000 bytes"):
        formats.gunzip(gzip.compress(bytes(100_000), mtime=0), "bomb.gz")


def test_cifar10_binary() -> None:
    record = b"".join(bytes([label]) + PICTURES[label].tobytes() for label in (3, 1))
    files = dict.fromkeys(formats.CIFAR10_FILES, record)
    arrays = formats.read_cifar10(files, "here")
    np.testing.assert_array_equal(arrays.train_images, np.tile(PICTURES[[3, 1]], (5, 1, 1, 1)))
    assert arrays.train_labels.tolist() == [3, 1] * 5
    np.testing.assert_array_equal(arrays.test_images, PICTURES[[3, 1]])


def test_cifar100_takes_the_fine_label() -> None:
    record = bytes([19, 88]) + PICTURES[0].tobytes()  # coarse, fine
    arrays = formats.read_cifar100({"train.bin": record * 3, "test.bin": record}, "here")
    assert arrays.train_labels.tolist() == [88] * 3
    np.testing.assert_array_equal(arrays.test_images, PICTURES[:1])


@pytest.mark.parametrize("data", [b"", bytes(3072), bytes(3073 * 2 - 1), bytes(3074)])
def test_cifar_refuses_odd_sizes(data: bytes) -> None:
    with pytest.raises(DataError, match=rf"^x\.bin: expected records of 3,073 bytes, found {len(data):,}"):
        formats.read_cifar_records(data, "x.bin", labels=1)


def sheet_files() -> dict[str, bytes]:
    rows = PICTURES.transpose(0, 2, 3, 1).reshape(4, 1024, 3)
    files = {name: png(rows) for name in formats.SHEET_FILES[:6]}
    return files | {"train_lables.json": json.dumps([0, 1, 2, 3] * 5).encode(), "test_lables.json": b"[9, 8, 7, 6]"}


def test_png_sheets() -> None:
    arrays = formats.read_sheets(sheet_files(), "here")
    np.testing.assert_array_equal(arrays.train_images, np.tile(PICTURES, (5, 1, 1, 1)))
    np.testing.assert_array_equal(arrays.test_images, PICTURES)
    assert arrays.test_labels.tolist() == [9, 8, 7, 6]


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("test_batch.png", b"GIF89a", "not a readable PNG"),
        ("test_batch.png", sheet_files()["test_batch.png"][:200], "not a readable PNG"),
        ("test_batch.png", png(np.zeros((4, 32, 3), np.uint8)), "1024 pixels wide, found 32×4"),
        ("test_lables.json", b"[1, 2", "not a JSON list"),
        ("test_lables.json", b'{"a": 1}', "list of labels"),
        ("test_lables.json", b"[1, -1, 3, 4]", "list of labels"),
        ("test_lables.json", b"[1, true, 3, 4]", "list of labels"),
    ],
)
def test_png_sheets_refuse(name: str, data: bytes, words: str) -> None:
    with pytest.raises(DataError, match=f"^here/{name}: .*{words}"):
        formats.read_sheets(sheet_files() | {name: data}, "here")


@pytest.mark.parametrize(("name", "pack"), [("a.tar.gz", tar), ("a.tgz", tar), ("a.deb", deb)])
def test_archives(tmp_path: Path, name: str, pack: object) -> None:
    assert callable(pack)
    path = tmp_path / name
    path.write_bytes(pack({"usr/share/one.gz": b"1", "../../two": b"2", "three": b"3"}))
    assert formats.read_archive(path, ["one", "two"]) == {"one": b"1", "two": b"2"}
    assert sorted(child.name for child in tmp_path.iterdir()) == [name]  # nothing was unpacked
    with pytest.raises(DataError, match="has no four"):
        formats.read_archive(path, ["one", "four"])


@pytest.mark.parametrize(("name", "pack"), [("a.tar.gz", tar), ("a.deb", deb)])
def test_archives_cut_off(tmp_path: Path, name: str, pack: object) -> None:
    assert callable(pack)
    path = tmp_path / name
    whole = pack({"one": RNG.bytes(50_000)})
    for data in (b"", b"not an archive at all", whole[: len(whole) // 2], whole[:70]):
        path.write_bytes(data)
        with pytest.raises(DataError, match=name):
            formats.read_archive(path, ["one"])


def test_archive_links_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    with tarfile.open(tmp_path / "a.tgz", "w:gz") as archive:
        link = tarfile.TarInfo("one")
        link.type, link.linkname = tarfile.SYMTYPE, str(tmp_path / "secret")
        archive.addfile(link)
    with pytest.raises(DataError, match="has no one"):
        formats.read_archive(tmp_path / "a.tgz", ["one"])


def test_archive_member_beyond_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "LARGEST", 10)
    (tmp_path / "a.tgz").write_bytes(tar({"one": bytes(11)}))
    with pytest.raises(DataError, match="one claims to have 11 bytes"):
        formats.read_archive(tmp_path / "a.tgz", ["one"])
