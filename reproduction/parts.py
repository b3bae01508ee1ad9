"""What each part and option of FedSat is worth: differences between runs with the same setting and seed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedsat.errors import UsageError
from fedsat.experiment.folder import speaking_of, write_whole
from reproduction.overview import MEASURES, brief
from reproduction.results import Kept, Result
from reproduction.statistics import student_half_width

FIRST = ("algorithm.objective.epsilon2=2.0", "algorithm.objective.tau=0.0")
"""The loss of FedSat's first version, as the `extra` column of its runs has it."""


@dataclass(frozen=True)
class Contrast:
    """Two contenders of a study that differ in one part."""

    part: str
    study: str
    having: str
    lacking: str


SHOWN = {name: MEASURES[name] for name in ("Accuracy", "Worst-class recall")}
"""The measures of the tables; in these settings, worst-client accuracy behaves like worst-class recall."""

PARTS = (
    Contrast("correction alone", "defaults", "fedsat-psl-pwa", "fedavg"),
    Contrast("correction", "defaults", "fedsat", "fedsat-correction"),
    Contrast("loss", "choice", "fedsat", "fedsat-psl"),
    Contrast("loss", "defaults", "fedsat", "fedsat-psl"),
    Contrast("calibration", "choice", "fedsat epsilon2=2.0", "fedsat tau=0.0 epsilon2=2.0"),
    Contrast("costs up to 4 instead of 2", "choice", "fedsat", "fedsat epsilon2=2.0"),
    Contrast("costs up to 2, no calibration", "choice", "fedsat tau=0.0 epsilon2=2.0", "fedsat-psl"),
    Contrast("weights", "choice", "fedsat epsilon2=2.0", "fedsat-pwa epsilon2=2.0"),
    Contrast("weights", "defaults", "fedsat", "fedsat-pwa"),
    Contrast("loss and weights", "defaults", "fedsat", "fedsat-psl-pwa"),
)
BASE = "fedsat epsilon2=2.0"
"""The base of the options' differences, from before ε₂ = 4 became the default."""

AVERAGING = tuple(
    Contrast("averaging", "choice", f"{method}, averaged", method)
    for method in ("fedsat", "scaffold", "feddyn", "fedavg")
)

ADDED = tuple(
    Contrast(part, "choice", f"fedsat {setting}", "fedsat")
    for part, setting in (
        ("distillation on missing classes", "objective=psl-distilled distillation=0.1"),
        ("distillation on missing classes", "objective=psl-distilled distillation=1.0"),
        ("distillation on all but the true class", "objective=psl-distilled distilled=others temperature=3.0"),
        ("inertia", "inertia=0.5"),
        ("GroupNorm", "norm=group"),
    )
)

LENGTHENED = (Contrast("short steps lengthened up to 3 times", "choice", "fedsat lengthen=3.0", "fedsat"),)


def blocks(kept: Kept) -> dict[str, list[str]]:
    """Return the tables of the study by name."""
    return {
        "parts": contrast_table(kept, PARTS),
        "averaging": contrast_table(kept, AVERAGING),
        "lengthened": contrast_table(kept, LENGTHENED),
        "added": contrast_table(kept, ADDED),
        "options": contrast_table(kept, _options(kept, "choice", BASE)),
        "first-options": contrast_table(kept, _options(kept, "defaults", "fedsat")),
    }


def _options(kept: Kept, study: str, base: str) -> list[Contrast]:
    """Return FedSat with each other option of the study against the base, without those that are parts."""
    common = base.removeprefix("fedsat")
    names = {result.key[0] for result in kept.get((study, "short"), ())} - {base, *(one.lacking for one in PARTS)}
    chosen = [name for name in sorted(names) if name.startswith("fedsat ") and name.endswith(common)]
    return [
        Contrast(f"`{name.removeprefix('fedsat ').removesuffix(common)}`", study, name, base)
        for name in chosen
        if ", " not in name
    ]


def contrast_table(kept: Kept, contrasts: Sequence[Contrast]) -> list[str]:
    """Return a line for each contrast and setting; differences whose interval excludes zero are in bold."""
    titles = ["", "difference", "setting", "τ, ε₂", "seeds", *SHOWN]
    lines = [f"| {' | '.join(titles)} |", "|---|---|---|---|---:|" + "---:|" * len(SHOWN)]
    for contrast in contrasts:
        for pairs in _pairs(kept.get((contrast.study, "short"), ()), contrast):
            (some, _), *_ = pairs
            words = [_worth([one.number(c) - other.number(c) for one, other in pairs]) for c in SHOWN.values()]
            what = f"`{contrast.having}` − `{contrast.lacking}`"
            about = [contrast.part, what, brief("; ".join((some.key[1], *_changes(some)))), _loss(some)]
            lines.append(f"| {' | '.join([*about, str(len(pairs)), *words])} |")
    return lines


def _pairs(results: Sequence[Result], contrast: Contrast) -> Iterator[list[tuple[Result, Result]]]:
    """Yield the pairs of each setting by seed: runs of the current loss, then those of the first version."""
    for version in (False, True):
        runs = [r for r in results if _loss(r) == "–" or set(FIRST).issubset(r.key[2].split(", ")) == version]
        having, lacking = (_by_place(runs, name) for name in (contrast.having, contrast.lacking))
        for place, by_seed in having.items():
            pairs = [(by_seed[s], lacking[place][s]) for s in sorted(by_seed) if s in lacking.get(place, {})]
            if pairs and not (version and all(_loss(run) == "–" for run in pairs[0])):
                yield pairs


def _by_place(results: Sequence[Result], contender: str) -> Mapping[tuple[str, ...], Mapping[int, Result]]:
    """Return a contender's runs by setting, other changes, and seed."""
    found: dict[tuple[str, ...], dict[int, Result]] = {}
    for result in results:
        if result.key[0] == contender:
            found.setdefault((result.key[1], *_changes(result)), {})[result.seed] = result
    return found


def _changes(result: Result) -> list[str]:
    """Return the changes in a run besides the loss; precision is the same for all runs of a setting."""
    changes = filter(None, result.key[2].split(", "))
    return [change for change in changes if change not in FIRST and not change.startswith("precision=")]


def _loss(result: Result) -> str:
    """Return τ and ε₂ of the run, or a dash for the cross-entropy."""
    objective = json.loads(result.line["algorithm"])["objective"]
    return f"{objective.get('tau', 0.0):g}, {objective['epsilon2']:g}" if "epsilon2" in objective else "–"


def _worth(differences: Sequence[float]) -> str:
    """Return the mean difference, with its interval if there are several seeds."""
    mean, half = float(np.mean(differences)), student_half_width(differences)
    if half is None:
        return f"{mean:+.2f}"
    text = f"{mean:+.2f} ± {half:.2f}"
    return f"**{text}**" if abs(mean) > half else text


def write_blocks(tables: Mapping[str, Sequence[str]], page: Path) -> None:
    """Write the tables between their marks in a page: `<!-- parts -->` and `<!-- /parts -->`."""
    with speaking_of(page):
        text = page.read_text(encoding="utf-8")
        for name, lines in tables.items():
            start, end = f"<!-- {name} -->", f"<!-- /{name} -->"
            before, opened, rest = text.partition(start)
            _, closed, after = rest.partition(end)
            if not opened or not closed:
                raise UsageError(f"{page} has no {start} and {end} for the table; add them where it belongs")
            text = before + "\n".join([start, "", *lines, "", end]) + after
        write_whole(page, text.encode())
