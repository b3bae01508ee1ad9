"""The code and links of the README work."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest

import fedsat
from fedsat.algorithms import algorithms

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


def test_five_lines_of_python(capsys: pytest.CaptureFixture[str]) -> None:
    code = next(block for block in BLOCKS if "import fedsat\n" in block)
    exec(code.replace("rounds=30", "rounds=2"), {})
    accuracy, worst_class, worst_client = map(float, capsys.readouterr().out.splitlines()[0].split())
    assert 0 < accuracy < 1
    assert 0 <= worst_class <= accuracy
    assert 0 <= worst_client <= 1


def test_a_method_of_your_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text(next(block for block in BLOCKS if "class LocalMomentum" in block))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    settings: dict[str, Any] = {"clients": 4, "per_round": 4, "rounds": 2, "epochs": 1, "partition": "iid"}
    losses = {}
    for engine in ("stacked", "sequential"):
        run = fedsat.run(**settings, algorithm="mine:LocalMomentum", beta=0.5, engine=engine)
        losses[engine] = run.records[-1].metrics["loss"]
        assert set(run.training.states[0]) == {"momentum", "objective"}
    assert losses["stacked"] == pytest.approx(losses["sequential"], rel=1e-5)
    without = fedsat.run(**settings, algorithm="mine:LocalMomentum", beta=0.0)
    plain = fedsat.run(**settings, algorithm="fedavg").records[-1].metrics["loss"]
    assert without.records[-1].metrics["loss"] == pytest.approx(plain, rel=1e-5)
    assert losses["stacked"] < 0.9 * plain


def test_every_method_is_in_the_table() -> None:
    assert all(f"| `{name}` |" in README for name in algorithms)


def test_links_lead_somewhere() -> None:
    links = [link for link in re.findall(r"\]\(([^):]+)\)", README) if not link.startswith("#")]
    missing = [link for link in links if not (Path(__file__).parent.parent / link.partition("#")[0]).exists()]
    assert links
    assert not missing
