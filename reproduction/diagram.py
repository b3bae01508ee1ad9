"""Critical-difference diagrams (Demšar, JMLR 7, 2006): mean ranks, and which of them do not differ."""

from __future__ import annotations

import re
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedsat.experiment.folder import speaking_of, write_whole
from reproduction.leads import CHAMPION, Ranking

INK, ACCENT, BAR = "#333333", "#3f51b5", "#d9822b"
ABOVE, NAME, SPAN = 1.7, 0.9, 0.35
"""Heights of what is above the axis, of a line of names, and of a bar, in the units of the vertical axis."""
GAP = 0.012
"""Distance of text from a line, as a share of the axis."""
STYLE: Any = {"svg.hashsalt": "ranks", "svg.fonttype": "none", "font.size": 9, "text.color": INK}
"""The same file for the same ranks, with text as text."""


def write_diagrams(columns: Sequence[Sequence[Ranking]], path: Path) -> None:
    """Draw one column of diagrams for each set of methods, and one row for each measure.

    The background is white, so that the figure is legible on dark pages as well.
    """
    heights = [ABOVE + max(map(_depth, row)) for row in zip(*columns, strict=True)]
    with rc_context(STYLE), speaking_of(path):
        size = (6.2 * len(columns), 0.27 * sum(heights) + 0.25 * len(heights))
        figure = Figure(figsize=size, facecolor="white", layout="constrained")
        axes = figure.subplots(len(heights), len(columns), squeeze=False, height_ratios=heights)
        for column, rankings in enumerate(columns):
            for row, ranking in enumerate(rankings):
                axes[row][column].set_ylim(ABOVE - heights[row], ABOVE)
                _draw(axes[row][column], ranking)
        drawn = BytesIO()
        figure.savefig(drawn, format="svg", metadata={"Date": None, "Creator": None})
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, re.sub(rb"[ \t]+\n", b"\n", drawn.getvalue()))


def _depth(ranking: Ranking) -> float:
    """Return the height of what is below the axis."""
    return _first_name(ranking) + NAME * ((len(ranking.ranks) + 1) // 2)


def _first_name(ranking: Ranking) -> float:
    """Return how far below the axis the first name is; the bars come before it."""
    return 0.75 + SPAN * len(alike(ranking))


def _draw(axes: Axes, ranking: Ranking) -> None:
    """Draw the critical difference, the axis of ranks, the bars, and the names."""
    k = len(ranking.ranks)
    axes.set_xlim(1 - 0.3 * (k - 1), k + 0.3 * (k - 1))
    axes.axis("off")
    axes.set_title(f"{ranking.measure}: {k} methods, {ranking.settings} settings", fontsize=9.5, color=INK)
    end = 1 + ranking.distance
    axes.plot([1, end], [1.25, 1.25], color=INK, lw=1.5, marker="|", markersize=6)
    axes.text(end + GAP * (k - 1), 1.25, f"critical difference {ranking.distance:.2f}", va="center", fontsize=8)
    axes.plot([1, k], [0, 0], color=INK, lw=1)
    for rank in range(1, k + 1):
        axes.plot([rank, rank], [0, 0.15], color=INK, lw=1)
        axes.text(rank, 0.25, str(rank), ha="center", va="bottom", fontsize=8)
    for place, (low, high) in enumerate(alike(ranking), start=1):
        axes.plot([low, high], [-SPAN * place] * 2, color=BAR, lw=3, solid_capstyle="round")
    _draw_names(axes, ranking)


def _draw_names(axes: Axes, ranking: Ranking) -> None:
    """Write the better half of the methods on the left, and the others on the right, each tied to its rank."""
    ordered = sorted(ranking.ranks.items(), key=lambda item: item[1])
    k, first = len(ordered), _first_name(ranking)
    for place, (method, rank) in enumerate(ordered):
        left = place < (k + 1) // 2
        y = -first - NAME * (place if left else k - 1 - place)
        outwards = -(k - 1) if left else k - 1
        x = (1 if left else k) + 0.03 * outwards
        words = f"{method} {rank:.2f}" if left else f"{rank:.2f} {method}"
        colour = ACCENT if method == CHAMPION else INK
        axes.plot([rank, rank, x], [0, y, y], color=colour, lw=1)
        axes.text(x + GAP * outwards, y, words, ha="right" if left else "left", va="center", color=colour)


def alike(ranking: Ranking) -> list[tuple[float, float]]:
    """Return the longest spans of mean ranks within the critical difference that have at least two methods."""
    values = sorted(ranking.ranks.values())
    spans = [(low, max(value for value in values if value - low <= ranking.distance)) for low in values]
    return [
        (low, high)
        for place, (low, high) in enumerate(spans)
        if high > low and all(high > before for _, before in spans[:place])
    ]
