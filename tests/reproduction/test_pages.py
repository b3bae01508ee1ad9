"""The pages have the numbers of the kept results; `reproduction write` and `study --page` bring them up to date."""

from __future__ import annotations

import shutil
from pathlib import Path

from reproduction.document import write_document
from reproduction.parts import blocks, write_blocks
from reproduction.results import read_all

ROOT = Path(__file__).parents[2]
RESULTS, STUDY = Path("docs/reproduction/results.md"), Path("docs/measurements/study.md")


def test_the_results_are_those_of_the_files(tmp_path: Path) -> None:
    write_document(ROOT / "results", tmp_path / RESULTS, tmp_path / "docs" / "assets" / "ranks.svg")
    assert (tmp_path / RESULTS).read_text(encoding="utf-8") == (ROOT / RESULTS).read_text(encoding="utf-8")


def test_the_study_has_the_tables_of_the_files(tmp_path: Path) -> None:
    page = tmp_path / "study.md"
    shutil.copy(ROOT / STUDY, page)
    write_blocks(blocks(read_all(ROOT / "results")), page)
    assert page.read_text(encoding="utf-8") == (ROOT / STUDY).read_text(encoding="utf-8")
