"""The guide from patients.csv to predictions, followed literally."""

from __future__ import annotations

import csv
import re
import shlex
from pathlib import Path

import pytest

import fedsat as library
from tests.support.calling import fedsat

GUIDE = Path(__file__).parent.parent / "docs" / "howto" / "patients.md"


def test_every_step(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyarrow")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    text = GUIDE.read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    exec(code, {})
    blocks = re.findall(r"^```(\w*)\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
    commands = [line for language, block in blocks if not language for line in block.splitlines()]
    assert [shlex.split(line)[1] for line in commands] == ["look", "run", "predict", "evaluate", "evaluate"]
    printed = []
    for line in commands:
        quick = line.replace("--rounds 20", "--rounds 3 --epochs 1")
        code, out, err = fedsat(capsys, *shlex.split(quick)[1:])
        assert (code, err) == (0, ""), line
        printed.append(out)
    assert re.search(r"Ash +31 .*Oak +5 ", printed[0], flags=re.DOTALL)
    assert "95.5%" in printed[0]
    assert "Few test samples, so the results are uncertain: event (36)" in Path("runs/patients/card.md").read_text()
    with Path("predictions.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 994
    assert list(rows[0]) == ["row", "predicted", "decided_by", "p(event)", "p(no event)"]
    assert library.load("runs/patients").summary["class_names"] == ["event", "no event"]
