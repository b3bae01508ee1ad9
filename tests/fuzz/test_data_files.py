"""Randomly changed data files are read correctly or refused: no traceback, no hang, no wrong data."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from fedsat.data import Columns, FromFile, folders, formats, load, sources
from fedsat.data.catalog import Arrays, DatasetInfo, digest
from fedsat.data.sources import Form, Origin
from tests.support.mutations import mutated, refused_or, tries

RNG = np.random.default_rng(2)
PICTURES = RNG.integers(0, 256, (6, 28, 28), dtype=np.uint8)
LABELS = np.array([0, 1, 2, 0, 1, 2], np.uint8)


def idx(array: np.ndarray) -> bytes:
    return b"\x00\x00\x08" + bytes([array.ndim]) + np.array(array.shape, ">u4").tobytes() + array.tobytes()


def saved(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def picture(kind: str, pixels: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind)
    return buffer.getvalue()


def archived(members: dict[str, bytes], mode: str) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as archive:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def packaged(members: dict[str, bytes]) -> bytes:
    data = archived(members, "w:xz")
    return b"!<arch>\n" + f"{'data.tar.xz':<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{len(data):<10}`\n".encode() + data


IDX = idx(PICTURES)
RECORDS = RNG.integers(0, 256, 2 * 3073, dtype=np.uint8).tobytes()
SHEET = picture("PNG", RNG.integers(0, 256, (2, 1024, 3), dtype=np.uint8))
READERS: dict[str, tuple[Callable[[bytes], Any], bytes]] = {
    "idx": (lambda data: formats.read_idx(data, "here"), IDX),
    "idx.gz": (lambda data: formats.read_idx(data, "here"), gzip.compress(IDX)),
    "cifar": (lambda data: formats.read_cifar_records(data, "here", 1), RECORDS),
    "sheet": (lambda data: formats.read_sheet(data, "here"), SHEET),
    "labels": (lambda data: formats.read_label_list(data, "here"), json.dumps(LABELS.tolist()).encode()),
}


@pytest.mark.parametrize("kind", list(READERS))
@tries(40)
@given(data=st.data())
def test_published_files(kind: str, data: st.DataObject) -> None:
    read, content = READERS[kind]
    changed = data.draw(mutated(content))
    refused_or(lambda: read(changed))


OFFICIAL = dict(zip(formats.IDX_FILES, map(idx, (PICTURES, LABELS, PICTURES[:3], LABELS[:3])), strict=True))
ARRAYS = Arrays(PICTURES[:, None], LABELS, PICTURES[:3, None], LABELS[:3])
KNOWN = DatasetInfo("", 6, 3, (1, 28, 28), ("a", "b", "c"), "", "", tuple(map(digest, ARRAYS)))  # type: ignore[arg-type]
FORM = Form(formats.IDX_FILES, formats.read_idx_set, ("*.tgz", "*.deb"))
FORMS = {
    "all.tgz": archived({f"set/{name}.gz": gzip.compress(content) for name, content in OFFICIAL.items()}, "w:gz"),
    "all.deb": packaged(OFFICIAL),
    **{f"{name}.gz": gzip.compress(content) for name, content in OFFICIAL.items()},
}


@pytest.mark.parametrize("name", ["all.tgz", "all.deb", f"{formats.IDX_FILES[0]}.gz"])
@tries(40)
@given(data=st.data())
def test_a_dataset_comes_as_published_or_not_at_all(
    name: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    changed = data.draw(mutated(FORMS[name]))
    folder = tmp_path_factory.mktemp("official")
    if name.endswith("-ubyte.gz"):
        for other in formats.IDX_FILES[1:]:
            (folder / f"{other}.gz").write_bytes(FORMS[f"{other}.gz"])
    (folder / name).write_bytes(changed)
    found = refused_or(lambda: sources.from_folder(folder, Origin((FORM,), (), ()), KNOWN))
    assert found is None or all((ours == theirs).all() for ours, theirs in zip(found, ARRAYS, strict=True))


@pytest.mark.parametrize("name", ["images.npy", "labels.npy"])
@pytest.mark.parametrize("dtype", [np.uint8, np.float64])
@tries(40)
@given(data=st.data())
def test_own_arrays(name: str, dtype: type, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    files = {"images.npy": saved(PICTURES[:, :5, :5].astype(dtype)), "labels.npy": saved(LABELS.astype(dtype))}
    files[name] = data.draw(mutated(files[name]))
    folder = tmp_path_factory.mktemp("own")
    for file, content in files.items():
        (folder / file).write_bytes(content)
    check_dataset(folder)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM"])
@tries(25)
@given(data=st.data())
def test_own_pictures(kind: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    spoiled = data.draw(mutated(picture(kind, PICTURES[0])))
    image_size = data.draw(st.sampled_from([None, 6]))
    folder = tmp_path_factory.mktemp("own")
    for label in ("cat", "dog"):
        (folder / label).mkdir()
        for number in range(2):
            (folder / label / f"{number}.png").write_bytes(picture(kind, PICTURES[number]))
    (folder / "cat" / "0.png").write_bytes(spoiled)
    check_dataset(folder, image_size)


def check_dataset(folder: Path, image_size: int | None = None) -> None:
    dataset = refused_or(lambda: folders.load_folder(folder, image_size=image_size))
    if dataset is not None:
        assert np.isfinite(dataset.mean).all()
        assert np.isfinite(dataset.std).all()
        assert len(dataset.train) + len(dataset.test) <= 6


OWNERS = np.arange(12) % 3
PARTITIONS = {
    "p.csv": b"client,index\n" + b"".join(b"%d,%d\n" % pair for pair in zip(OWNERS.tolist(), range(12), strict=True)),
    "p.npy": saved(np.stack([OWNERS, np.arange(12)], axis=1)),
    "p.json": json.dumps([np.flatnonzero(client == OWNERS).tolist() for client in range(3)]).encode(),
}


@pytest.mark.parametrize("name", list(PARTITIONS))
@tries(80)
@given(data=st.data())
def test_partition_files(name: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    changed = data.draw(mutated(PARTITIONS[name]))
    path = tmp_path_factory.getbasetemp() / name
    path.write_bytes(changed)
    owners = refused_or(lambda: FromFile(path).owners(np.zeros(12, np.int64), 1, 3, np.random.default_rng(0)))
    assert owners is None or (len(owners) == 12 and set(owners.tolist()) == {0, 1, 2})


TABLE = "".join(
    f"{'uv'[row % 2]},{row * 1.5},{'abc'[row % 3]},2026-01-{row + 1:02},{row % 2 == 0}\n" for row in range(12)
)


@pytest.mark.parametrize("name", ["p.csv", "p.csv.gz"])
@tries(40)
@given(data=st.data())
def test_tables(name: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    pytest.importorskip("pyarrow")
    plain = ("client,number,ward,seen,label\n" + TABLE).encode()
    content = data.draw(mutated(gzip.compress(plain) if name.endswith(".gz") else plain))
    path = tmp_path_factory.getbasetemp() / name
    path.write_bytes(content)
    dataset = refused_or(lambda: load(str(path), columns=Columns("label", "client")))
    if dataset is not None:
        assert dataset.schema is not None
        assert dataset.train.images.shape == (len(dataset.train), dataset.schema.width)
        assert np.isfinite(dataset.train.images).all()


@tries(40)
@given(data=st.data())
def test_the_cache(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    name = data.draw(st.sampled_from(Arrays._fields))
    changed = data.draw(mutated(saved(getattr(ARRAYS, name))))
    root = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDSAT_DATA", str(root))
        patch.setitem(sources.cache.info.__globals__["DATASETS"], "mnist", KNOWN)
        folder = sources.cache.write("mnist", ARRAYS)
        (folder / f"{name}.npy").write_bytes(changed)
        dataset = refused_or(lambda: load("mnist"))
    assert dataset is None or (dataset.train.images == ARRAYS.train_images).all()
