"""A look at real nodes: the report from counts that they send, what these leave out, and who refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedsat
from fedsat.data import Summary
from fedsat.report.look import PICTURE, REPORT, Look
from tests.support.calling import fedsat as call

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedsat[flower]'")

from fedsat.flower import server
from fedsat.flower.look import look_at_nodes
from fedsat.flower.terms import Terms
from tests.flower.test_equality import CLIENTS, nodes, settings
from tests.support.faulty_nodes import LENIENT, FaultyNodes

TERMS = Terms(timeout=60, wait=60)
SKEWED = {"partition": {"name": "ls", "beta": 0.3}}


def agreeing(folder: Path, *lines: str) -> str:
    """Write an agreement with further lines, and return its path."""
    path = folder / "agreement.toml"
    path.write_text("\n".join([LENIENT.read_text(), *lines]))
    return str(path)


@pytest.mark.parametrize("validation", [0.0, 0.3])
def test_the_report_is_that_of_a_look_at_all_data(validation: float, clouds: Path) -> None:
    table = settings(clouds, **SKEWED)
    expected = fedsat.look(**table)
    grid = FaultyNodes(*nodes(clouds))
    found = look_at_nodes(grid, fedsat.configure(**table, validation=validation), TERMS)
    np.testing.assert_array_equal(found.division.counts, expected.division.counts)
    assert found.suggestions == expected.suggestions
    assert found.grid(80).plain == expected.grid(80).plain
    assert not found.notes
    assert [kind for _, kind in grid.requests] == ["query.hello"] * CLIENTS


def test_what_nodes_leave_out_is_said(clouds: Path, tmp_path: Path) -> None:
    """The run asks all nodes to leave out classes with fewer than 4 samples, and one node leaves out more."""
    table = settings(clouds, **SKEWED)
    federation = fedsat.prepare(fedsat.configure(**table)).setup.federation
    assert federation is not None
    held = federation.class_counts
    given = nodes(clouds)
    given[1]["agreement"] = agreeing(tmp_path, "report_at_least = 12")
    limits = np.array([4, 12, 4, 4, 4])[:, None]
    expected = np.where(held < limits, 0, held)
    found = look_at_nodes(FaultyNodes(*given), fedsat.configure(**table, report_at_least=4), TERMS)
    np.testing.assert_array_equal(found.division.counts, expected)
    assert found.summary == Summary.of(expected)
    hidden = (held - expected).sum(axis=1)
    assert hidden[1]
    assert not hidden.all()
    rows = np.flatnonzero(hidden)
    assert len(found.notes) == len(rows)
    for note, row in zip(found.notes, rows, strict=True):
        assert note.startswith(f"client {row} leaves out samples")
        for label, name in enumerate(federation.dataset.class_names):
            assert (re.search(rf"\b{name}\b", note.partition("possible: ")[2]) is not None) == (
                expected[row, label] == 0
            )
    cells = [line[-CLIENTS:] for line in found.grid(80).plain.splitlines()[:-1]]
    unknown = (expected == 0) & (hidden > 0)[:, None]
    assert [[sign == "?" for sign in line] for line in cells] == unknown.T.tolist()


def test_nodes_that_refuse_are_named(clouds: Path, tmp_path: Path) -> None:
    given = nodes(clouds)
    given[1]["agreement"] = agreeing(tmp_path, "histograms = false")
    grid = FaultyNodes(*given)
    found = look_at_nodes(grid, fedsat.configure(**settings(clouds)), TERMS)
    refused, columns = found.notes
    assert refused.startswith("node 1001 sent no counts: ")
    assert "histograms is false" in refused
    assert columns == "the columns are the clients 0, 2, 3, 4"
    assert found.title == "4 of 5 nodes"
    assert found.division.clients == 4
    assert found.division.per_round == 3


def test_nodes_that_stay_silent_are_counted(clouds: Path) -> None:
    grid = FaultyNodes(*nodes(clouds))
    grid.faults = dict.fromkeys((1000, 1001, 1002), lambda _, __: None)
    found = look_at_nodes(grid, fedsat.configure(**settings(clouds)), Terms(wait=0.5))
    assert found.notes[0] == "3 of 5 nodes did not answer within 0.5 s"
    assert (found.division.clients, found.division.per_round) == (2, 2)
    assert "fedsat-pwa" in found.text()


def test_no_counts_at_all(clouds: Path, tmp_path: Path) -> None:
    config = fedsat.configure(**settings(clouds))
    refusing = agreeing(tmp_path, "histograms = false")
    with pytest.raises(fedsat.FedsatError, match=r"no node sent its counts; node 1000 .* histograms is false"):
        look_at_nodes(FaultyNodes(*({**node, "agreement": refusing} for node in nodes(clouds))), config, TERMS)
    with pytest.raises(fedsat.FedsatError, match="every class of every node is too rare"):
        look_at_nodes(FaultyNodes(*nodes(clouds)), fedsat.configure(**settings(clouds), report_at_least=1000), TERMS)


@pytest.mark.parametrize(
    ("options", "terms", "why"),
    [
        ({"privacy": "local", "algorithm": "fedavg"}, TERMS, "differential privacy"),
        ({}, Terms(worker_counts="sums"), "worker_counts is 'sums'"),
    ],
)
def test_federations_that_keep_counts_secret(options: dict[str, Any], terms: Terms, why: str, clouds: Path) -> None:
    grid = FaultyNodes(*nodes(clouds))
    with pytest.raises(fedsat.UsageError, match=why):
        look_at_nodes(grid, fedsat.configure(**settings(clouds, **options)), terms)
    assert not grid.requests


def test_a_server_without_data(clouds: Path) -> None:
    """Nodes count the samples that they would train on, without those that they hold out."""
    config = fedsat.configure(**settings(clouds))
    found = look_at_nodes(FaultyNodes(*nodes(clouds)), config, Terms(test="nodes", class_names="0,1,2", wait=60))
    assert found.division.test_counts is None
    assert 0 < found.summary.samples < fedsat.look(**settings(clouds)).summary.samples


def test_the_server_logs_the_report_and_writes_files(
    clouds: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    monkeypatch.setattr(server.log, "info", lambda text, *given: lines.append(text % given))
    config = fedsat.configure(**settings(clouds, **SKEWED), report_at_least=8)
    found = look_at_nodes(FaultyNodes(*nodes(clouds)), config, TERMS)
    server.look(FaultyNodes(*nodes(clouds)), config, TERMS, tmp_path / "look")
    assert (tmp_path / "look" / PICTURE).read_bytes().startswith(b"\x89PNG")
    assert found.notes
    assert Look.read(tmp_path / "look").text() == found.text()
    assert found.text().splitlines() == lines[-1 - len(found.text().splitlines()) : -1]


def test_on_the_command_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    options = ["--nodes", "2", "--partition", "ls", "--beta", "0.3", "--report-at-least", "20"]
    code, out, _ = call(capsys, "federate", "--look", *options, "--out", str(tmp_path / "it"))
    assert code == 0
    assert "2 of 2 nodes" in out
    assert "note: client " in out
    assert "suggestions" in out
    assert {path.name for path in (tmp_path / "it").iterdir()} == {"flower-logs", PICTURE, REPORT}
