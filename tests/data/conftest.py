"""Small versions of the official files, and a web server on the loopback address to download them from."""

from __future__ import annotations

import gzip
import os
import re
import struct
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from fedsat.data import DATASETS, sources
from fedsat.data.catalog import Arrays, DatasetInfo, digest
from fedsat.data.formats import IDX_FILES

Writer = Callable[[Path], Path]


def idx(array: np.ndarray) -> bytes:
    """Return an idx file of bytes, as MNIST's authors define it."""
    return b"\x00\x00\x08" + bytes([array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


@pytest.fixture
def tiny() -> Arrays:
    """Return arrays in the form of MNIST, with 20 + 10 images."""
    rng = np.random.default_rng(5)
    images = rng.integers(0, 256, (30, 1, 28, 28), dtype=np.uint8)
    labels = (np.arange(30) % 10).astype(np.uint8)
    return Arrays(images[:20], labels[:20], images[20:], labels[20:])


@pytest.fixture
def tiny_files(tiny: Arrays) -> dict[str, bytes]:
    """Return the four idx files of `tiny`, by official name."""
    arrays = (tiny.train_images[:, 0], tiny.train_labels, tiny.test_images[:, 0], tiny.test_labels)
    return {name: idx(array) for name, array in zip(IDX_FILES, arrays, strict=True)}


@pytest.fixture
def tiny_mnist(tiny: Arrays, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> DatasetInfo:
    """Make `tiny` pass for MNIST, without any source, and with an empty cache."""
    sums = [digest(array) for array in tiny]
    known = replace(DATASETS["mnist"], train_size=20, test_size=10, sha256=(sums[0], sums[1], sums[2], sums[3]))
    monkeypatch.setitem(DATASETS, "mnist", known)
    monkeypatch.setitem(sources.ORIGINS, "mnist", replace(sources.ORIGINS["mnist"], addresses=(), package=None))
    monkeypatch.setenv("FEDSAT_DATA", str(tmp_path / "cache"))
    return known


class Recorder:
    """A reporter that stores its messages."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.steps: list[tuple[str, int, int | None]] = []

    def line(self, text: str) -> None:
        self.lines.append(text)

    def progress(self, what: str, done: int, total: int | None) -> None:
        self.steps.append((what, done, total))


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@dataclass
class Web:
    """Files at an address; `breaks[path]` lists after how many bytes the next responses are cut off."""

    address: str
    files: dict[str, bytes] = field(default_factory=dict)
    breaks: dict[str, list[int]] = field(default_factory=dict)
    ranges: bool = True
    requests: list[tuple[str, str | None]] = field(default_factory=list)

    def serve(self, files: dict[str, bytes]) -> None:
        """Offer files gzipped, as the official addresses do."""
        self.files |= {f"/{name}.gz": gzip.compress(data, mtime=0) for name, data in files.items()}


@pytest.fixture
def web() -> Iterator[Web]:
    """A web server that supports ranges and can cut off responses."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            wish = self.headers.get("Range")
            site.requests.append((self.path, wish))
            if self.path not in site.files:
                self.send_error(404, "Not Found")
                return
            data = site.files[self.path]
            start = int(re.fullmatch(r"bytes=(\d+)-", wish)[1]) if wish and site.ranges else 0
            if wish and start >= len(data):
                self.send_error(416)
                return
            self.send_response(206 if wish and site.ranges else 200)
            if wish and site.ranges:
                self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
            self.send_header("Content-Length", str(len(data) - start))
            self.end_headers()
            breaks = site.breaks.get(self.path)
            self.wfile.write(data[start : start + breaks.pop(0)] if breaks else data[start:])

        def log_message(self, *arguments: object) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    site = Web(f"http://127.0.0.1:{server.server_port}/")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield site
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def official() -> Path:
    """A folder with the official files, for tests that check fedsat against the real data."""
    folder = os.environ.get("FEDSAT_OFFICIAL")
    if not folder:
        pytest.skip("set FEDSAT_OFFICIAL to a folder with the official files to run this")
    return Path(folder)
