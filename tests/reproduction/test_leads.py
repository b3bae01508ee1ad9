"""Who leads: margins, ranks and paired differences against calculations by hand."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from reproduction.diagram import alike, write_diagrams
from reproduction.leads import (
    Ranking,
    contests,
    dataset_table,
    difference_table,
    fields,
    lead,
    lead_lines,
    lead_table,
    rank_lines,
    rank_methods,
    rank_table,
)
from reproduction.overview import MEASURES, Setting
from reproduction.results import Result

ACCURACY = MEASURES["Accuracy"]


def setting(where: str, extra: str = "", **accuracies: list[float]) -> Setting:
    """A setting with these accuracies from seed 0 on; the other measures are ten points lower."""
    runs = {
        method: {
            seed: Result({"rounds": "200", **{c: str(value - 10 * (c != ACCURACY)) for c in MEASURES.values()}})
            for seed, value in enumerate(values)
        }
        for method, values in accuracies.items()
    }
    return Setting(where, "full", extra, runs)


def test_margins_are_over_the_seeds_that_all_have() -> None:
    won = setting("ls, mnist, mlp", fedavg=[80.0, 84.0, 99.0], scaffold=[90.0, 92.0], fedsat=[93.0, 95.0])
    lost = setting("ls, cifar10, resnet8", "precision=bf16", fedavg=[50.0], scaffold=[60.0], fedsat=[57.5])
    assert lead(won, ACCURACY) == (94.0, "scaffold", 3.0)
    rows = lead_table([won, lost])[2:]
    assert rows[0].startswith("| ls, mnist, mlp | 94.00 | scaffold 91.00 | +3.00 | 84.00 | scaffold 81.00 | +3.00 |")
    assert rows[0].endswith("| 3 | 200 | 2 |")
    assert "| **-2.50** |" in rows[1]
    expected = "- Accuracy: fedsat leads in 1 of 2 settings; not in ls, cifar10, resnet8 (scaffold is ahead by 2.50)."
    assert lead_lines([won, lost])[0] == expected


def test_only_the_current_protocol_counts() -> None:
    values = {"fedavg": [1.0], "scaffold": [2.0], "fedsat": [3.0]}
    kept = setting("ls, cifar10, resnet8", "precision=bf16", **values)
    others = [
        setting("lsmc, mnist, mlp", "partition.sizes=skewed", **values),
        setting("lsmc, mnist, mlp", "partition.sizes=skewed, precision=bf16", **values),
        setting("lsmc, mnist, mlp", fedavg=[1.0], fedsat=[3.0]),
        setting("lsmc, mnist, mlp", fedavg=[1.0], scaffold=[2.0], feddyn=[2.0]),
    ]
    assert contests([kept, *others]) == [kept]


def test_mean_ranks_and_what_differs() -> None:
    five = {"fedavg": [1.0], "feddyn": [2.0], "fedlada": [3.0], "scaffold": [4.0], "fedsat": [5.0]}
    swapped = {**five, "scaffold": [5.0], "fedsat": [4.0]}
    where = [setting(f"ls, mnist, {n}", **(five if n else swapped)) for n in range(3)]
    where.append(setting("ls, mnist, more", **five, moon=[0.0]))
    where.append(setting("ls, mnist, again", **five, moon=[0.0]))
    wide, long = fields(where)
    assert (wide[0][-2:], len(wide[0]), len(wide[1])) == (["scaffold", "fedsat"], 6, 2)
    assert (long[0], len(long[1])) == (list(five), 5)
    ranking = rank_methods(*long)[0]
    # FedSat is second once: (2 + 4·1)/5. Five methods in five settings: 2.728 · √(30/30).
    assert ranking.ranks == pytest.approx({"fedavg": 5, "feddyn": 4, "fedlada": 3, "scaffold": 1.8, "fedsat": 1.2})
    assert ranking.distance == pytest.approx(2.728)
    assert ranking.behind == ["fedavg", "feddyn"]
    # χ² = 12/(5·5·6) · (25² + 20² + 15² + 9² + 6²) - 3·5·6 = 19.36; with four degrees of freedom, p = e^-9.68 · 10.68.
    assert ranking.p == pytest.approx(10.68 * math.exp(-9.68))
    assert rank_table([ranking])[2].endswith(" | 1.20 | 0.0007 | 2.73 |")
    assert "5 methods: fedsat is ahead of fedavg, feddyn by" in rank_lines([ranking])[0]
    assert fields(where[:1]) == []


def test_differences_are_paired_by_setting_and_seed() -> None:
    found = [
        setting("ls, mnist, mlp", scaffold=[90.0, 91.0], fedsat=[91.0, 93.0, 50.0]),
        setting("ls, cifar10, resnet8", scaffold=[60.0], fedsat=[69.0], fedavg=[59.0]),
    ]
    rows = difference_table(found)[2:]
    # (1 + 2 + 9)/3; whole settings are drawn, so 1.5 and 9 are the extremes.
    assert rows[1].startswith("| scaffold | 2 | 3 | +4.00 [+1.50, +9.00] |")
    assert rows[0].startswith("| fedavg | 1 | 1 | +10.00 [+10.00, +10.00] |")
    by_dataset = next(line for line in dataset_table(found) if line.startswith("| scaffold"))
    assert by_dataset == "| scaffold | +1.50 | +1.50 | +1.50 | +9.00 | +9.00 | +9.00 |"


def test_the_diagram_connects_what_does_not_differ(tmp_path: Path) -> None:
    ranking = Ranking("Accuracy", 9, {"fedsat": 1.0, "scaffold": 2.5, "fedlada": 2.6, "fedavg": 4.2}, 0.01, 1.75)
    assert alike(ranking) == [(1.0, 2.6), (2.5, 4.2)]
    path = tmp_path / "assets" / "ranks.svg"
    write_diagrams([[ranking, ranking]], path)
    drawn = path.read_bytes()
    assert b">fedavg 4.20<" in drawn or b">4.20 fedavg<" in drawn
    write_diagrams([[ranking, ranking]], path)
    assert path.read_bytes() == drawn
