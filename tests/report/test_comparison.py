"""Which differences may be noise, and how runs are grouped."""

from __future__ import annotations

from pathlib import Path

import pytest

import fedsat
from fedsat.report.comparison import (
    comparison,
    fewest_rounds,
    format_rounds,
    format_value,
    marks,
    method_results,
    tied,
)
from fedsat.report.groups import find_runs, group_runs
from tests.support.made_runs import make_run


def test_ties_are_paired_by_seed() -> None:
    # Seeds differ by ten points, methods by exactly one: no noise in the difference.
    assert not tied({0: 0.80, 1: 0.90, 2: 0.70}, {0: 0.79, 1: 0.89, 2: 0.69})
    # Differences 1, -1, 0.6: mean 0.2, deviation 1.058, standard error 0.611, times 4.303 = 2.63 > 0.2.
    assert tied({0: 0.80, 1: 0.80, 2: 0.80}, {0: 0.79, 1: 0.81, 2: 0.794})
    # Differences 5.0, 4.6, 4.2: mean 4.6, standard error 0.231, times 4.303 = 0.99 < 4.6.
    assert not tied({0: 0.850, 1: 0.846, 2: 0.842}, {0: 0.80, 1: 0.80, 2: 0.80})
    # Differences 1 and 3: mean 2, standard error 1, times 12.71 > 2: two seeds say little.
    assert tied({0: 0.81, 1: 0.83}, {0: 0.80, 1: 0.80})
    assert not tied({0: 0.81}, {0: 0.80})
    assert not tied({0: 0.81, 1: 0.82}, {1: 0.81, 2: 0.80})


def test_marks() -> None:
    noisy = {0: 0.79, 1: 0.81}
    assert marks([{0: 0.8, 1: 0.82}, noisy, {0: 0.1, 1: 0.11}]) == ["best", "", ""]
    assert marks([{0: 0.83, 1: 0.81}, noisy]) == ["best", "tie"]
    assert marks([{0: 0.5}, {0: 0.5}, {0: 0.4}]) == ["best", "best", ""]
    assert marks([{0: 0.5}]) == [""]
    # Seed 1 gives higher numbers, and only the first method has it: with seed 0 alone, the second is ahead.
    assert marks([{0: 0.5, 1: 0.9}, {0: 0.6}]) == ["", "best"]
    assert marks([{0: 0.5}, {1: 0.6}]) == ["", ""]


def test_numbers_as_written() -> None:
    assert format_value({0: 0.5}) == "50.0"
    assert format_value({0: 0.5, 1: 0.52}) == "51.0±1.4"
    assert format_rounds([10, 13]) == "12"
    assert format_rounds([10, None]) == "1 of 2"
    assert format_rounds([None]) == "–"
    assert fewest_rounds([[10, 12], [4, None], [None, None]]) == 11


def test_runs_that_differ_in_their_seed_are_one_group(tmp_path: Path) -> None:
    for seed in (1, 0):
        make_run(tmp_path / f"a{seed}", algorithm="fedavg", seed=seed, accuracy=0.6 + seed / 10)
        make_run(tmp_path / f"b{seed}", algorithm="fedsat", seed=seed, gamma=0.5)
        make_run(tmp_path / f"c{seed}", algorithm="fedsat", seed=seed, gamma=1.0, engine="sequential")
    groups = group_runs(find_runs([tmp_path]))
    assert [(group.label, group.seeds) for group in groups] == [
        ("fedavg", [0, 1]),
        ("fedsat, gamma=0.5", [0, 1]),
        ("fedsat, gamma=1.0", [0, 1]),
    ]
    fedavg = method_results(groups, target=0.55)[0]
    assert fedavg.qualities["accuracy"] == pytest.approx({0: 0.6 - 0.0, 1: 0.7}, abs=0.03)
    assert fedavg.reached == [6, 5]
    assert fedavg.megabytes == pytest.approx(18)
    assert "±" in comparison(groups).legend


def test_a_method_with_fewer_seeds_is_named(tmp_path: Path) -> None:
    for seed in (0, 1):
        make_run(tmp_path / f"a{seed}", algorithm="fedavg", seed=seed, accuracy=0.6 + seed / 10)
    make_run(tmp_path / "b", algorithm="fedprox", seed=0, accuracy=0.62)
    shown = comparison(group_runs(find_runs([tmp_path])))
    # Round 3 is at three quarters: 0.975 · (60 + 70)/2 and 0.975 · 62; with seed 0 alone 60 stands against 62.
    assert [row[1] for row in shown.rows] == [("63.4±6.9", ""), ("60.5", "best")]
    assert (
        "Fewer seeds: fedprox has only 0; best and ≈ are determined over the seeds that all methods have."
        in shown.legend
    )


def test_runs_on_different_federations_are_not_compared(tmp_path: Path) -> None:
    make_run(tmp_path / "a", algorithm="fedavg", partition="iid", accuracy=0.9)
    make_run(tmp_path / "b", algorithm="fedavg", partition="lsmc", accuracy=0.5)
    groups = group_runs(find_runs([tmp_path]))
    assert [group.label for group in groups] == ["iid", "lsmc"]
    shown = comparison(groups, target=0.3)
    assert {mark for row in shown.rows for _, mark in row} == {""}
    assert "no best value is marked" in shown.legend


def test_an_interrupted_run_gives_way_to_the_finished_one(tmp_path: Path) -> None:
    make_run(tmp_path / "a", seed=3)
    cut = make_run(tmp_path / "b", seed=3)
    path = cut.folder / "metrics.jsonl"
    path.write_text(path.read_text()[:-100])  # the last line is cut short
    (cut.folder / "summary.json").unlink()
    (group,) = group_runs(find_runs([tmp_path / "b", tmp_path / "a"]))
    assert group.first.folder == tmp_path / "a"
    alone = comparison(group_runs(find_runs([tmp_path / "b"])))
    assert "Not finished: fedsat" in alone.legend
    assert "With one seed, ties cannot be determined" in alone.legend


def test_folders_without_runs(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "report.html").write_text("a page")
    with pytest.raises(fedsat.UsageError, match="no run in "):
        find_runs([tmp_path, tmp_path / "report.html"])
    run = make_run(tmp_path / "run")
    assert [found.folder for found in find_runs(sorted(tmp_path.iterdir()))] == [run.folder]  # as the shell gives *
    with pytest.raises(fedsat.UsageError, match="there is no folder"):
        find_runs([tmp_path / "nowhere"])
