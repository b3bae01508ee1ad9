"""The page of attacks and defences, from the rows that `python -m reproduction.robustness` keeps."""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedsat.experiment.folder import write_whole

ATTACKS = [
    "label-flip",
    "sign-flip",
    "scale",
    "noise",
    "free-rider",
    "lying-worker",
    "kill-class",
    "alie",
    "ipm",
    "backdoor",
]
ABSENT = "absent"
"""No attack: all updates of the attackers are refused. A perfect filter would lose the same accuracy."""
DEFENCES = [
    "fedavg",
    "fedavg+median",
    "fedavg+trimmed-mean",
    "fedavg+multi-krum",
    "fedsat:paper",
    "fedsat",
    "fedsat-pwa+multi-krum",
    "fedsat:robust",
]
BLIND = ("+median", "+trimmed-mean")
"""Defences that work coordinate by coordinate: the weights of clients do not show whose updates were used."""
MARK = "<!-- tables, written by python -m reproduction.robustness --page -->"
Row = dict[str, Any]


def read(path: Path) -> list[Row]:
    """Return the rows of the file; none if there is no file."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def write_page(rows: list[Row], path: Path) -> None:
    """Replace the tables after the mark in the document."""
    if not rows:
        sys.exit("there are no results yet")
    head = path.read_text(encoding="utf-8").partition(MARK)[0] if path.exists() else "# Robustness\n\n"
    write_whole(path, (head + MARK + "\n\n" + "\n".join(tables(rows)) + "\n").encode())
    print(f"written: {path}")


def tables(rows: list[Row]) -> Iterator[str]:
    """Return the tables of every setting: the worst cases at a glance, then the losses and the attackers' weights."""
    settings = ("dataset", "model", "rounds", "fedsat")
    found = unique(tuple(row[name] for name in settings) for row in rows)
    for dataset, model, rounds, version in sorted(found, key=lambda setting: str(setting[3]), reverse=True):
        mine = [row for row in rows if tuple(row[name] for name in settings) == (dataset, model, rounds, version)]
        made = unique(f"torch {row['torch']}, {row['device']}" for row in mine)
        command = f"python -m reproduction.robustness --dataset {dataset} --model {model} --rounds {rounds}"
        yield f"## {model} on {dataset}, fedsat {version}\n"
        yield f"Made by `{command}` with {'; '.join(made)}."
        yield f"Accuracy is the mean of the last ten rounds, in per cent; means over the seeds. {seeds_of(mine)}\n"
        splits = {split: [row for row in mine if row["split"] == split] for split in unique(r["split"] for r in mine)}
        yield from glance(splits)
        for split, here in splits.items():
            for share in shares_in(here):
                yield from table(here, f"{model} on {dataset}, {split}, {100 * share:.0f} % attackers", share)


def seeds_of(rows: Sequence[Row]) -> str:
    """Say with which seeds each defence was run."""
    groups: dict[str, list[str]] = {}
    for name in (name for name in DEFENCES if any(row["defence"] == name for row in rows)):
        seeds = ", ".join(sorted({row["seed"] for row in rows if row["defence"] == name}))
        groups.setdefault(seeds, []).append(f"`{name}`")
    return " ".join(f"Seeds {seeds}: {', '.join(names)}." for seeds, names in groups.items())


def glance(splits: Mapping[str, list[Row]]) -> Iterator[str]:
    """Return, for every defence, its largest loss under any attack and its smallest lead over FedAvg."""
    found = sorted({share for rows in splits.values() for share in shares_in(rows)})
    yield "The attack that costs a defence most, and the one under which it is least above FedAvg, in points:\n"
    heads = [
        f"{100 * share:.0f} %: {what}" for share in found for what in ("loses at most", "above FedAvg by at least")
    ]
    yield f"| | | clean | {' | '.join(heads)} |\n|---|---|---:|{'---:|' * len(heads)}"
    for split, rows in splits.items():
        for name in (name for name in DEFENCES if any(row["defence"] == name for row in rows)):
            clean = means([row["accuracy"] for row in rows if (row["defence"], row["attack"]) == (name, "none")], 100)
            cells = [cell for share in found for cell in (most_lost(rows, name, share), least_above(rows, name, share))]
            yield f"| {split} | {name} | {clean} | {' | '.join(cells)} |"
    yield ""


def most_lost(rows: Sequence[Row], defence: str, share: float) -> str:
    """Return the largest mean loss against the clean runs of the same seeds, and its attack."""
    clean = accuracies(rows, defence, "none", 0.0)
    losses = {
        attack: np.mean([clean[seed] - value for seed, value in found.items()])
        for attack in ATTACKS
        if (found := accuracies(rows, defence, attack, share)) and found.keys() <= clean.keys()
    }
    return extreme(losses, max)


def least_above(rows: Sequence[Row], defence: str, share: float) -> str:
    """Return the smallest mean lead over FedAvg under the same attack and seeds, and its attack."""
    leads = {}
    for attack in ATTACKS:
        own, fedavg = (accuracies(rows, name, attack, share) for name in (defence, "fedavg"))
        both = own.keys() & fedavg.keys()
        if both and defence != "fedavg":
            leads[attack] = np.mean([own[seed] - fedavg[seed] for seed in both])
    return extreme(leads, min)


def extreme(found: Mapping[str, Any], choose: Callable[..., str]) -> str:
    """Return the largest or smallest value and its name, and how many attacks it is chosen of if some are missing."""
    if not found:
        return "–"
    name = choose(found, key=lambda each: found[each])
    partly = "" if len(found) == len(ATTACKS) else f"; {len(found)} of {len(ATTACKS)} attacks"
    return f"{100 * found[name]:.1f} ({name}{partly})"


def accuracies(rows: Sequence[Row], defence: str, attack: str, share: float) -> dict[str, float]:
    """Return the accuracy by seed; a run that diverged has 0."""
    return {
        row["seed"]: float(row["accuracy"] or 0)
        for row in rows
        if (row["defence"], row["attack"], float(row["attackers"])) == (defence, attack, share)
    }


def shares_in(rows: Sequence[Row]) -> list[float]:
    """Return the shares of attackers."""
    return sorted({float(row["attackers"]) for row in rows} - {0.0})


def table(rows: list[Row], title: str, share: float) -> Iterator[str]:
    """Return the tables of one setting: points lost and accuracy, and the attackers' weights."""
    clean = {(row["defence"], row["seed"]): row for row in rows if row["attack"] == "none"}
    attacks = [attack for attack in (*ATTACKS, ABSENT) if any(row["attack"] == attack for row in rows)]
    attacked = {
        (defence, attack): [
            row for row in rows
            if (row["defence"], row["attack"], float(row["attackers"])) == (defence, attack, share)
        ]
        for defence in unique(row["defence"] for row in rows)
        for attack in attacks
    }  # fmt: skip
    defences = [name for name in DEFENCES if any(attacked.get((name, attack)) for attack in attacks)]
    heading = f"| | clean | {' | '.join(attacks)} |\n|---|{'---:|' * (1 + len(attacks))}"
    yield f"### {title}\n\nPoints lost against the clean run of the same defence and seed (accuracy):\n\n{heading}"
    for defence in defences:
        cells = [means([row["accuracy"] for (name, _), row in clean.items() if name == defence], 100)]
        for attack in attacks:
            pairs = [(clean.get((defence, row["seed"])), row) for row in attacked[defence, attack]]
            before = [one["accuracy"] if one else "" for one, _ in pairs]
            after = [row["accuracy"] for _, row in pairs]
            cells.append(lost(before, after))
        yield f"| {defence} | {' | '.join(cells)} |"
    yield f"\nThe attackers' part of the weight, and the share of their updates left out, in per cent:\n\n{heading}"
    for defence in defences:
        if defence.endswith(BLIND):
            continue
        honest = means([row["honest_left_out"] for (name, _), row in clean.items() if name == defence], 100)
        cells = [
            f"{means([row['attackers_weight'] for row in attacked[defence, attack]], 100)}, "
            f"{means([row['attackers_left_out'] for row in attacked[defence, attack]], 100)}"
            for attack in attacks
        ]
        yield f"| {defence} | {honest} honest left out | {' | '.join(cells)} |"
    yield ""
    if "backdoor" in attacks:
        success = [
            f"{means([row['backdoor'] for row in attacked[name, 'backdoor']], 100)} ({name})" for name in defences
        ]
        yield f"Samples with the trigger that the final model takes for the target, in per cent: {', '.join(success)}."
        yield ""


def unique(values: Iterable[Any]) -> list[Any]:
    """Return each value once, in the order of first appearance."""
    return list(dict.fromkeys(values))


def means(texts: Sequence[str], factor: float) -> str:
    """Return the mean of numbers in the file; a dash if one is missing."""
    return f"{factor * np.mean([float(text) for text in texts]):.1f}" if texts and all(texts) else "–"


def lost(before: Sequence[str], after: Sequence[str]) -> str:
    """Return the mean loss in points and, in brackets, the remaining accuracy."""
    if not after:
        return "–"
    if not all(after):
        return "diverged"
    points = means([str(float(b) - float(a)) for b, a in zip(before, after, strict=True)], 100) if all(before) else "–"
    return f"{points} ({means(after, 100)})"
