"""The library's functions: what the command line can do, from Python."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import fedsat
from fedsat.algorithms import FedProx
from fedsat.errors import UsageError

TINY: dict[str, Any] = {
    "clients": 10, "per_round": 3, "workers": 2, "rounds": 2, "epochs": 1, "device": "cpu", "classes_per_client": 3,
}  # fmt: skip


def test_compare(tmp_path: Path) -> None:
    found = fedsat.compare(["fedavg", FedProx], seeds=2, seed=5, grid={"mu": [0.1, 1.0]}, out=tmp_path, **TINY)
    assert [(group.label, group.seeds) for group in found.groups] == [
        ("fedavg", [5, 6]), ("fedprox, mu=0.1", [5, 6]), ("fedprox, mu=1.0", [5, 6]),
    ]  # fmt: skip
    assert found.failures == {}
    alone = fedsat.run(algorithm="fedavg", seed=5, **TINY)
    assert found.runs[0].summary["accuracy"] == alone.summary["accuracy"]
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/summary.json")}
    again = fedsat.compare(["fedavg", "fedprox"], seeds=2, seed=5, grid={"mu": [0.1, 1.0]}, out=tmp_path, **TINY)
    assert repr(again) == repr(found)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/summary.json")} == before


def test_a_comparison_is_shown(tmp_path: Path) -> None:
    found = fedsat.compare(["fedavg", "feddyn"], seeds=2, target=0.99, **TINY)
    text = repr(found).splitlines()
    assert text[0].startswith("mnist-mini, lsmc")
    assert text[1].split()[:2] == ["accuracy", "%"]
    assert [line.split("  ")[0].strip() for line in text[2:]] == ["fedavg", "feddyn", "feddyn, active-mean"]
    assert "rounds to 99 %" in text[1]
    assert "<caption>mnist-mini, lsmc" in found._repr_html_()
    assert "<b>" in found._repr_html_()
    assert found.plot("worst_class_recall").axes[0].get_ylabel() == "worst-class recall, %"
    with pytest.raises(UsageError, match="did you mean 'accuracy'"):
        found.plot("acuracy")
    page = found.report(tmp_path / "page.html")
    assert page.read_text().startswith("<!doctype html>")


def test_to_pandas() -> None:
    pytest.importorskip("pandas")
    frame = fedsat.compare(["feddyn"], seeds=2, **TINY).to_pandas()
    assert frame[["method", "seed", "model"]].to_numpy().tolist() == [
        ["feddyn", 0, "global"], ["feddyn", 0, "active-mean"], ["feddyn", 1, "global"], ["feddyn", 1, "active-mean"],
    ]  # fmt: skip
    assert frame["worst_class_recall"].between(0, 1).all()


def test_what_cannot_be_compared() -> None:
    with pytest.raises(UsageError, match="takes names or classes"):
        fedsat.compare([FedProx(mu=0.1)], **TINY)  # type: ignore[list-item]
    with pytest.raises(UsageError, match="no method is given"):
        fedsat.compare([], **TINY)
    with pytest.raises(UsageError, match="gamm"):
        fedsat.compare(["fedsat"], gamm=0.5, **TINY)


def test_a_run_that_fails_is_named() -> None:
    with pytest.warns(UserWarning, match=r"fedavg-lr=1e\+30-seed0 failed: round 1"):
        found = fedsat.compare("fedavg", grid={"lr": [0.01, 1e30]}, **TINY)
    assert len(found.runs) == 1
    assert list(found.failures) == ["fedavg-lr=1e+30-seed0"]


def test_a_target_is_a_share() -> None:
    with pytest.raises(UsageError, match=r"target is 85; it must be a share, such as 0\.85"):
        fedsat.compare("fedavg", target=85, **TINY)


def test_a_grid_may_change_the_defaults_of_the_dataset() -> None:
    found = fedsat.compare("fedavg", dataset="clinics-synthetic", grid={"per_round": [2, 4]}, rounds=1, epochs=1)
    assert [run.table["per_round"] for run in found.runs] == [2, 4]
    assert {run.table["model"]["name"] for run in found.runs} == {"tabular"}
    named = fedsat.configure(dataset="clinics-synthetic", partition="natural")
    assert (named.clients, named.per_round) == (8, 8)


def test_report_and_load(tmp_path: Path) -> None:
    run = fedsat.run(**TINY, out=tmp_path / "one", average=0.8)
    stored = fedsat.load(tmp_path / "one")
    assert stored.summary["accuracy"] == run.summary["accuracy"]
    assert stored.model().keys() == {**run.model.params, **run.model.buffers}.keys()
    assert stored.model("averaged.safetensors").keys() == stored.model().keys()
    with pytest.raises(UsageError, match=r"has no worst.safetensors; it has averaged.safetensors, model.safetensors"):
        stored.model("worst.safetensors")
    for given in (run, stored, tmp_path / "one", str(tmp_path)):
        page = fedsat.report(given, out=tmp_path / "page.html")
        assert "fedsat on mnist-mini" in page.read_text()
        page.unlink()
    with pytest.raises(UsageError, match="wrote no files"):
        fedsat.report(fedsat.run(**TINY))


def test_progress_is_shown_if_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    fedsat.run(**TINY, algorithm="fedavg")
    assert capsys.readouterr().out == ""
    fedsat.run(**TINY, algorithm="fedavg", progress=True)
    assert "round 2/2  accuracy" in capsys.readouterr().out
