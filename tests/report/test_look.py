"""Looking at data before training: the picture, the suggestions with their reasons, and the command that follows."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedsat
from fedsat.report.look import Look, division_of
from fedsat.report.suggestions import Division, suggest, workers_needed
from tests.support.calling import fedsat as call


def division(counts: Any, **changes: Any) -> Division:
    counts = np.array(counts)
    names = [f"c{label}" for label in range(counts.shape[1])]
    given: dict[str, Any] = {"per_round": 1, "batch_size": 4, "test_counts": None, **changes}
    return Division(counts, names, **given)


def advice(given: Division) -> dict[str, str]:
    return {each.topic: f"{each.what}: {each.why}" for each in suggest(given)}


def test_workers_by_hand() -> None:
    """One class is held by 3 of 4 clients: one node lacks it with probability 1/4, two never. The other by all."""
    assert workers_needed(np.array([3, 4]), 4) == 2
    assert workers_needed(np.array([4, 4]), 4) == 1
    assert workers_needed(np.array([1]), 20) == 19  # 18 of 20 nodes miss the only holder in a tenth of the draws
    assert workers_needed(np.array([10, 10]), 20) == 5  # 2 C(10, 5)/C(20, 5) = 0.0325; with four nodes 0.087


def test_a_division_without_skew_asks_for_nothing_but_fedavg() -> None:
    found = suggest(division(np.full((10, 2), 100)))
    assert [each.topic for each in found] == ["method"]
    assert "start with fedavg" in found[0].what
    assert "0.00 from the overall ones" in found[0].why


def test_chance_is_not_taken_for_skew() -> None:
    """Random samples of 20 clients differ by 0.16, as expected by chance, so no other method is suggested."""
    rng = np.random.default_rng(0)
    counts = rng.multinomial(30, np.full(5, 0.2), size=20)
    assert fedsat.data.Summary.of(counts).skew > 0.1
    assert suggest(division(counts))[0].what.startswith("start with fedavg")


def test_missing_classes() -> None:
    found = advice(division([[10, 0, 0], [0, 10, 0], [0, 0, 10], [0, 0, 10]]))
    assert "lack at least 2 of 3 classes" in found["method"]
    assert "fedsat" in found["method"]
    assert "4 workers" in found["workers"]  # without the only holder of c0, three nodes do not suffice
    assert "worst-client accuracy" in found["measures"]
    assert "4 of 4 clients have only one class" in found["check"]


def test_all_clients_in_every_round_leave_no_workers() -> None:
    found = suggest(division([[10, 0], [0, 10]], per_round=2))
    assert "fedsat-pwa" in next(each.what for each in found if each.topic == "workers")
    methods = dict(setting for each in found for setting in each.settings)["methods"]  # as in the command that follows
    assert "fedsat-pwa" in methods.split(",")


def test_a_rare_class() -> None:
    given = division(np.tile([96, 4], (5, 1)), test_counts=np.array([240, 10]), batch_size=200)
    found = {each.what: each for each in suggest(given)}
    accuracy = found["balanced accuracy and worst-class recall, not accuracy"]
    assert "always answers c0 has an accuracy of 96.0%" in accuracy.why
    assert accuracy.settings == (("metrics", "auroc,average_precision,worst_class_f1"),)
    assert "class c1 has fewer than 50 test samples; one sample moves a recall by 10%" in next(
        each.why for each in found.values() if each.settings == (("seeds", 3),)
    )
    assert "5 of 5 clients have fewer samples than a batch of 200" in advice(given)["check"]
    assert "fedsat" in advice(given)["method"]  # no skew, but a class that FedAvg seldom predicts


def test_classes_that_few_rounds_see() -> None:
    """c0 is at one of ten clients, so a round of two has it with probability 1/5."""
    counts = np.zeros((10, 3), int)
    counts[0, 0], counts[:, 1] = 5, 10
    found = [each.why for each in suggest(division(counts, per_round=2)) if each.topic == "check"]
    assert any("class c0: only 20% of the rounds" in why for why in found)
    assert any("no client has a sample of class c2" in why for why in found)


def test_nothing_is_said_about_cells_that_clients_leave_out() -> None:
    """Client 0 may have samples of c1 and c2, and client 1 none, so only client 1 is small and has a single class."""
    given = division([[10, 0, 0], [0, 10, 0], [10, 10, 0]], batch_size=15, partial=np.array([True, False, False]))
    checks = [each.why for each in suggest(given) if each.topic == "check"]
    assert any("no client reports a sample of class c2; at most, some have too few" in why for why in checks)
    assert any("1 of 3 clients have fewer samples than a batch of 15" in why for why in checks)
    assert any("1 of 3 clients have only one class" in why for why in checks)
    assert "report none of at least 2 of 3 classes" in suggest(given)[0].why
    assert [line[3:] for line in Look("a title", given).grid(80).plain.splitlines()[:3]] == ["█ █", "?██", "?  "]


def test_the_grid_groups_clients_that_do_not_fit() -> None:
    look = Look("a title", division([[4, 0], [0, 4], [4, 0], [0, 0]]))
    first, second, last = look.grid(80).plain.splitlines()
    assert (first, second) == ("c0 █ █ ", "c1  █  ")
    assert "each column is a client" in last
    grouped = look.grid(5).plain.splitlines()
    assert grouped[0] == "c0 ██"
    assert "each column is 2 clients" in grouped[2]


def test_from_python() -> None:
    look = fedsat.look(clients=20, per_round=5, partition="lsmc", classes_per_client=2)
    assert look.summary.clients == 20
    page = look._repr_html_()
    assert "mnist-mini, lsmc, 20 clients, seed 0" in page
    assert look.suggestions[0].what in page
    assert look.division.test_counts is not None
    assert look.division.test_counts.sum() == len(fedsat.data.load("mnist-mini").test)
    assert division_of(fedsat.configure(batch_size="all"), look.division.counts, "0123456789").batch_size is None


def test_the_command_that_follows_is_one(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    options = ["--clients", "20", "--per-round", "4", "--classes-per-client", "2", "--set", "skew=0.2"]
    code, out, _ = call(capsys, "look", "mnist-mini", *options, "--out", str(tmp_path / "it.png"))
    assert code == 0
    assert (tmp_path / "it.png").read_bytes().startswith(b"\x89PNG")
    command = shlex.split(re.search(r"to compare: (.*)", out)[1])  # type: ignore[index]
    assert command[:2] == ["fedsat", "compare"]
    assert {"--methods", "--workers", "skew=0.2", "--classes-per-client"} < set(command)
    code, out, _ = call(capsys, *command[1:], "--rounds", "1", "--epochs", "1", "--out", str(tmp_path / "runs"))
    assert code == 0
    assert "fedsat" in out
