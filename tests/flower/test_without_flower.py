"""Without Flower, fedsat says what to install, and everything else works."""

from __future__ import annotations

import sys

import pytest

import fedsat.flower
from fedsat.cli import main
from fedsat.errors import FedsatError


def test_the_command_names_what_to_install(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "flwr", None)
    with pytest.raises(SystemExit) as ended:
        main(["federate", "--nodes", "4"])
    assert ended.value.code == 1
    assert "pip install 'fedsat[flower]'" in capsys.readouterr().err


def test_the_apps_name_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "flwr", None)
    with pytest.raises(FedsatError, match="install"):
        _ = fedsat.flower.server_app
    with pytest.raises(AttributeError):
        _ = fedsat.flower.other_app
