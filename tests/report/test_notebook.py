"""The progress of runs in a notebook."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import fedsat
from fedsat.experiment.batch import Shown
from fedsat.report.notebook import NotebookDisplay


def test_lines_that_change(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    shown: list[str] = []

    def show(content: dict[str, str], **_: Any) -> None:
        shown.append(content["text/plain"])

    def display(content: dict[str, str], **how: Any) -> SimpleNamespace:
        assert how == {"raw": True, "display_id": True}
        show(content)
        return SimpleNamespace(update=show)

    module = ModuleType("IPython.display")
    module.display = display  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    small: dict[str, Any] = {"clients": 5, "per_round": 2, "workers": 2, "rounds": 2, "epochs": 1, "evaluate_every": 2}
    runs = [fedsat.prepare(fedsat.configure(algorithm=name, **small)) for name in ("fedavg", "fedprox")]
    screen = NotebookDisplay()
    screen.say("a note")
    with screen.progress([Shown(runs[0]), Shown(runs[1], "[2/2] fedprox")]) as seen:
        assert seen is not None
        seen(runs[1], runs[1].run_round())
        record = runs[1].run_round()
        seen(runs[1], record)
    waiting = "fedavg  round 0/2"
    accuracy = f"accuracy {100 * record.metrics['accuracy']:.1f}  worst-class recall"
    assert shown[:2] == [f"{waiting}\n[2/2] fedprox  round 0/2", f"{waiting}\n[2/2] fedprox  round 1/2"]
    assert shown[2].startswith(f"{waiting}\n[2/2] fedprox  round 2/2  {accuracy}")
    assert capsys.readouterr().out == "a note\n"
