"""Labels name what differs between runs, and the line above the table states what they share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedsat.report.groups import common_settings, find_runs, group_runs
from tests.support.made_runs import make_run

Runs = list[dict[str, Any]]
FEDSAT: dict[str, Any] = {"algorithm": "fedsat"}
LSMC = "mnist-mini, lsmc classes_per_client=2 skew=0.5 sizes=even, mlp, 5 of 30 clients, 12 rounds"

OWN_DATA = LSMC.removeprefix("mnist-mini, ")


def labels_and_header(folder: Path, runs: Runs) -> tuple[list[str], str]:
    for number, settings in enumerate(runs):
        make_run(folder / f"{number:02}", **settings)
    groups = group_runs(find_runs([folder]))
    return [group.label for group in groups], common_settings(groups)


@pytest.mark.parametrize(
    ("runs", "labels", "header"),
    [
        ([FEDSAT], ["fedsat"], LSMC),
        # Options of the method come after its name, shortened.
        ([FEDSAT | {"gamma": 0.5}, FEDSAT | {"gamma": 0.9}], ["fedsat, gamma=0.5", "fedsat, gamma=0.9"], LSMC),
        (
            [FEDSAT | {"epsilon2": 2.0, "lr": 0.1}, FEDSAT | {"epsilon2": 3.0, "lr": 0.01}],
            ["fedsat, epsilon2=2.0, lr=0.1", "fedsat, epsilon2=3.0, lr=0.01"],
            LSMC,
        ),
        # A method that all runs share is stated above the table.
        ([FEDSAT | {"lr": 0.1}, FEDSAT | {"lr": 0.05}], ["lr=0.1", "lr=0.05"], f"fedsat, {LSMC}"),
        ([{"algorithm": "fedavg", "lr": 0.1}, FEDSAT | {"lr": 0.05}], ["fedavg, lr=0.1", "fedsat, lr=0.05"], LSMC),
        # Settings that were changed are stated, with the methods that have them unless all do.
        (
            [{"algorithm": "fedavg", "lr": 0.1}, FEDSAT | {"lr": 0.1, "gamma": 0.5}],
            ["fedavg", "fedsat"],
            f"{LSMC}, lr=0.1, gamma=0.5 (fedsat)",
        ),
        ([FEDSAT | {"server_lr": 0.5}, {"algorithm": "fedavg", "server_lr": 0.5}], ["fedsat", "fedavg"],
         f"{LSMC}, server_lr=0.5"),
        # Options are compared between runs with the same part.
        (
            [{"partition": "iid"}, {"classes_per_client": 2}, {"classes_per_client": 4}],
            ["iid", "lsmc, classes_per_client=2", "lsmc, classes_per_client=4"],
            "fedsat, mnist-mini, mlp, 5 of 30 clients, 12 rounds",
        ),
        (
            [{"classes_per_client": 2, "per_round": 5}, {"classes_per_client": 3, "per_round": 6}],
            ["per_round=5, classes_per_client=2", "per_round=6, classes_per_client=3"],
            "fedsat, mnist-mini, lsmc skew=0.5 sizes=even, mlp, 30 clients, 12 rounds",
        ),
        # Data folders go by their names if these differ.
        ([{"dataset": "./a/mine"}, {"dataset": "./a/yours"}], ["mine", "yours"], f"fedsat, {OWN_DATA}"),
        ([{"dataset": "./a/mine"}, {"dataset": "./b/mine"}], ["./a/mine", "./b/mine"],
         f"fedsat, {OWN_DATA}"),
    ],
)  # fmt: skip
def test_labels_and_header(tmp_path: Path, runs: Runs, labels: list[str], header: str) -> None:
    found, line = labels_and_header(tmp_path, runs)
    assert found == labels
    assert line == f"{header}; seed 0"


def test_a_name_that_two_options_share_is_written_longer(tmp_path: Path) -> None:
    runs = [
        FEDSAT | {"partition": "ls", "partition.beta": beta, "algorithm.weighting.beta": 0.5} for beta in (0.1, 0.3)
    ]
    found, _ = labels_and_header(tmp_path, runs)
    assert found == ["partition.beta=0.1", "partition.beta=0.3"]


def test_of_many_differences_only_those_are_listed_that_tell_runs_apart(tmp_path: Path) -> None:
    runs = [
        {"algorithm": "fedavg", "rounds": 20},
        FEDSAT | {"rounds": 20},
        *(
            FEDSAT | {"partition": "ls", "rounds": 8, "clients": 20, "epochs": 2, "lr": 0.1, "gamma": gamma}
            for gamma in (0.3, 0.9)
        ),
        {"algorithm": "moon", "partition": "iid"},
        {"algorithm": "moon", "partition": "iid", "lr": 0.1},
        {"algorithm": "fedsat:robust", "partition": "iid"},
    ]
    found, line = labels_and_header(tmp_path, runs)
    assert found == [
        "fedavg, lsmc",
        "fedsat, lsmc",
        "fedsat, gamma=0.3, ls",
        "fedsat, gamma=0.9, ls",
        "moon, iid, lr=0.01",
        "moon, iid, lr=0.1",
        "fedsat:robust, iid, lr=0.01",
    ]
    assert line == "mnist-mini, mlp; labels name only some of the settings that differ; seed 0"


def test_no_two_groups_have_the_same_label(tmp_path: Path) -> None:
    # An interrupted run has no summary, and so does not show that a part of its method was left out.
    for folder, weighting in (("a/run", "pwa"), ("b/run", "samples"), ("c/other", "uniform")):
        run = make_run(tmp_path / folder, weighting=weighting)
        (run.folder / "summary.json").unlink()
    groups = group_runs(find_runs([tmp_path / "a", tmp_path / "b"]))
    assert [group.label for group in groups] == [f"fedsat ({tmp_path / folder / 'run'})" for folder in "ab"]
    groups = group_runs(find_runs([tmp_path / "a", tmp_path / "c"]))
    assert [group.label for group in groups] == ["fedsat (run)", "fedsat (other)"]


def test_a_part_that_was_added_later_has_its_default(tmp_path: Path) -> None:
    old = make_run(tmp_path / "a")
    table = (old.folder / "config.toml").read_text()
    before, _, after = table.partition("[lr_schedule]")
    (old.folder / "config.toml").write_text(before + "[algorithm]" + after.partition("[algorithm]")[2])
    make_run(tmp_path / "b", lr_schedule={"name": "exponential", "decay": 0.5})
    groups = group_runs(find_runs([tmp_path]))
    assert [group.label for group in groups] == ["lr_schedule=constant", "lr_schedule=exponential"]
    assert common_settings(groups) == f"fedsat, {LSMC}, decay=0.5 (exponential); seed 0"


def test_an_option_that_was_added_later_is_no_difference(tmp_path: Path) -> None:
    old = make_run(tmp_path / "a", gamma=0.5)
    path = old.folder / "config.toml"
    path.write_text("".join(line for line in path.read_text().splitlines(keepends=True) if "inertia" not in line))
    make_run(tmp_path / "b", gamma=0.7)
    assert [group.label for group in group_runs(find_runs([tmp_path]))] == ["fedsat, gamma=0.5", "fedsat, gamma=0.7"]
