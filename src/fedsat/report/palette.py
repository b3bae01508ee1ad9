"""One colour for each method, the same in every chart and figure, regardless of the other methods."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from zlib import crc32

METHODS = {
    "fedsat": "#bd1f01",
    "fedavg": "#717581",
    "scaffold": "#3f90da",
    "feddyn": "#ffa90e",
    "fedavgm": "#832db6",
    "fedprox": "#a96b59",
    "fedlada": "#e76300",
    "elastic": "#b9ac70",
    "moon": "#92dadd",
    "fedlc": "#94a4a2",
}
"""The ten colours of M. Petroff, Accessible Color Sequences for Data Visualization, 2021: safe for colour-blind
readers, and different in lightness."""
OTHERS = ("#117733", "#d45087", "#2f4b7c", "#44aa99", "#999933", "#882255", "#5b8c2a", "#6a5acd")
"""Colours of other methods, chosen by their names."""
DASHES = ((), (6, 3), (2, 2), (7, 2, 2, 2))
"""Line styles as lengths of dashes and gaps; the first is solid."""
SHADES = (0.0, 0.35, -0.3, 0.55)
"""How far a colour is mixed with white, or with black where negative."""


@dataclass(frozen=True)
class Style:
    """How a group is drawn."""

    colour: str
    dash: tuple[int, ...]


def method_colour(algorithm: str) -> str:
    """The colour of a method; a preset, such as `fedsat:paper`, has that of its method."""
    base = _base(algorithm)
    return METHODS.get(base) or OTHERS[crc32(base.encode()) % len(OTHERS)]


def _base(algorithm: str) -> str:
    """Return the method of a preset; other names, such as `mine:Clipped`, are returned unchanged."""
    before = algorithm.partition(":")[0]
    return before if before in METHODS else algorithm


def styles(methods: Sequence[tuple[str, str]]) -> list[Style]:
    """One style for each group, given the algorithm and the full name of its method (`fedsat`, `fedsat-pwa`).

    Groups with the same colour differ in line style and shade. The first group of the plain method has the plain
    colour, whatever the order of the groups.
    """
    found: dict[int, Style] = {}
    used: Counter[str] = Counter()
    plain_first = sorted(range(len(methods)), key=lambda index: methods[index][1] != _base(methods[index][0]))
    for index in plain_first:
        colour = method_colour(methods[index][0])
        found[index] = _variant(colour, used[colour])
        used[colour] += 1
    return [found[index] for index in range(len(methods))]


def _variant(colour: str, number: int) -> Style:
    """Both dashes and shades change from one variant to the next; the first 16 are different."""
    dash, turn = number % len(DASHES), number // len(DASHES)
    return Style(_mixed(colour, SHADES[(dash + turn) % len(SHADES)]), DASHES[dash])


def _mixed(colour: str, share: float) -> str:
    goal = 255 if share > 0 else 0
    channels = [int(colour[start : start + 2], 16) for start in (1, 3, 5)]
    return "#" + "".join(f"{round(value + abs(share) * (goal - value)):02x}" for value in channels)
