"""Tables on a terminal of 80 columns: nothing is cut off."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

from rich.console import Console

from fedsat.experiment.card import OF_CLASSES
from fedsat.report.comparison import comparison
from fedsat.report.groups import common_settings, find_runs, group_runs
from fedsat.report.progress import say
from fedsat.report.tables import classes_table, comparison_table
from tests.support.made_runs import make_run


def test_a_wide_comparison(tmp_path: Path) -> None:
    for method in ("fedavg", "fedsat:robust"):
        for lr in (0.1, 0.5):
            for seed in (0, 1, 2):
                name = f"{method}-{lr}-{seed}".replace(":", ".")
                make_run(tmp_path / name, algorithm=method, lr=lr, seed=seed, accuracy=0.5 + 0.2 * seed, rounds=200)
    groups, lines = group_runs(find_runs([tmp_path])), StringIO()
    Console(file=lines, width=80).print(comparison_table(groups, target=0.6))
    printed = [line.rstrip() for line in lines.getvalue().splitlines()]
    words = " ".join(printed).split()
    shown = comparison(groups, 0.6)
    assert all(len(line) <= 80 for line in printed)
    assert words[: len(common_settings(groups).split())] == common_settings(groups).split()
    assert (
        " ".join([shown.legend, *shown.terms]).split() == words[-len(" ".join([shown.legend, *shown.terms]).split()) :]
    )
    assert {text for row in shown.rows for text, _ in row[1:]} <= {word.rstrip("≈") for word in words} | {"2 of 3"}
    assert "fedsat:robust" in words  # not folded after its last letter, with a comma on the next line


def test_the_measures_of_classes() -> None:
    values = {"samples": [12_345, 42], **{each.name: [0.5, 0.25] for each in OF_CLASSES}}
    lines = StringIO()
    Console(file=lines, width=80).print(classes_table(values, ["benign", "malignant"], OF_CLASSES))
    assert "…" not in lines.getvalue()


def test_lines_on_a_terminal_are_broken_between_words() -> None:
    lines = StringIO()
    console = Console(file=lines, width=20, force_terminal=True)
    say(console, "page: runs/a-folder/with-a-long-name/report.html and more")
    assert lines.getvalue() == "page:\nruns/a-folder/with-a-long-name/report.html\nand more\n"
    lines.seek(0)
    say(Console(file=lines, width=20), "a log is not broken at twenty columns")
    assert lines.getvalue().startswith("a log is not broken at twenty columns\n")
