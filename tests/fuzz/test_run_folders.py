"""Randomly changed run folders: a run continues to exactly the same result, or is refused."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedsat
from fedsat.experiment.store import StoredRun
from tests.support.mutations import mutated, refused_or, tries
from tests.support.runs import TINY, killed_after, results

FILES = [
    "checkpoints/round-000004.json", "checkpoints/round-000004.safetensors", "checkpoints/round-000002.json",
    "checkpoints/round-000002.safetensors", "metrics.jsonl", "best.safetensors",
]  # fmt: skip
SETTINGS: dict[str, Any] = {
    "clients": 4, "per_round": 2, "workers": 2, "hidden": [2], "algorithm": "fedsat", "validation": 0.2,
}  # fmt: skip


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A killed run, and the result it should reach."""
    root = tmp_path_factory.mktemp("runs")
    fedsat.run(**{**TINY, **SETTINGS}, out=root / "whole")
    killed_after(5, root / "killed", **SETTINGS)
    return root / "killed", results(root / "whole")


@tries(15)
@given(data=st.data())
def test_a_damaged_folder_leads_to_the_right_result_or_an_error(
    data: st.DataObject, folders: tuple[Path, dict[str, Any]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    killed, right = folders
    contents = {name: (killed / name).read_bytes() for name in FILES}
    spoiled = data.draw(st.lists(st.sampled_from(FILES), min_size=1, max_size=3, unique=True))
    changed = {name: data.draw(mutated(contents[name])) for name in spoiled}
    folder = tmp_path_factory.mktemp("spoiled") / "run"
    shutil.copytree(killed, folder)
    for name, content in changed.items():
        (folder / name).write_bytes(content)
    if refused_or(lambda: fedsat.resume(folder)) is not None:
        assert results(folder) == right
    shutil.rmtree(folder)


@tries(100)
@given(data=st.data())
def test_a_stored_run_is_read_or_refused(
    data: st.DataObject, folders: tuple[Path, dict[str, Any]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    whole = folders[0].parent / "whole"
    files = {name: (whole / name).read_bytes() for name in ("config.toml", "metrics.jsonl", "summary.json")}
    spoiled = data.draw(st.sampled_from(list(files)))
    files[spoiled] = data.draw(mutated(files[spoiled]))
    folder = tmp_path_factory.getbasetemp() / "stored"
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    refused_or(lambda: read_everything(folder))


def read_everything(folder: Path) -> list[Any]:
    run = StoredRun.read(folder)
    return [run.summary, run.method, run.seed, run.evaluated]
