"""The plot of a federation: samples by client and class."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedsat.data.federation import Federation
from fedsat.data.summary import Range, Summary
from fedsat.errors import UsageError
from fedsat.seeding import Indices

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, FAINT, COLOUR = "#22303c", "#e3e8ec", "#2a6f97"
BUBBLES = (120, 20)
"""Largest numbers of clients and classes that are drawn as bubbles; larger federations are drawn as a heat map."""


def draw(federation: Federation, path: Path, title: str = "") -> Path:
    """Write the plot of a federation as a PNG file: classes by clients, with the clients' sizes above."""
    dataset = federation.dataset
    return draw_counts(federation.class_counts, dataset.class_names, path, title or dataset.name)


def draw_counts(
    counts: Indices, class_names: Sequence[str], path: Path, title: str, unknown: NDArray[np.bool_] | None = None
) -> Path:
    """Write the plot of the samples of each client in each class, [N, m]; `unknown` cells have a question mark."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415 (slow to import)
    from matplotlib.figure import Figure  # noqa: PLC0415

    clients, classes = counts.shape
    width = float(np.clip(3.5 + 0.085 * clients, 7, 16))
    height = float(np.clip(2.6 + 0.28 * classes, 4.2, 12))
    figure = Figure(figsize=(width, height), dpi=130, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    top, main = figure.subplots(2, 1, sharex=True, height_ratios=(1.1, height - 1.6))
    _draw_sizes(top, counts.sum(axis=1))
    bubbles = clients <= BUBBLES[0] and classes <= BUBBLES[1]
    (_draw_bubbles if bubbles else _draw_cells)(figure, main, counts)
    if unknown is not None and unknown.any():
        main.scatter(*np.nonzero(unknown), s=22, color=INK, marker="$?$", linewidth=0)
    _name_classes(main, class_names)
    main.xaxis.get_major_locator().set_params(integer=True)
    main.set(xlabel="client", xlim=(-0.7, clients - 0.3), ylim=(classes - 0.4, -0.6))
    top.set_title(_caption(counts, title), loc="left", fontsize=10, color=INK)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, format="png")
    except OSError as error:
        raise UsageError(f"cannot write the plot to {path} ({error.strerror})") from error
    return path


def _caption(counts: Indices, title: str) -> str:
    numbers = Summary.of(counts)
    return (
        f"{title}: {numbers.samples:,} samples, {numbers.clients:,} clients of {_span(numbers.size)}"
        f" with {_span(numbers.classes_held)} of {counts.shape[1]} classes"
    )


def _span(values: Range) -> str:
    return f"{values.low:,.0f}" if values.low == values.high else f"{values.low:,.0f} to {values.high:,.0f}"


def _draw_sizes(axes: Axes, sizes: Indices) -> None:
    if len(sizes) <= BUBBLES[0]:
        axes.bar(range(len(sizes)), sizes, width=0.8, color=COLOUR, linewidth=0)
    else:  # one outline instead of thousands of rectangles
        axes.stairs(sizes, np.arange(len(sizes) + 1) - 0.5, fill=True, color=COLOUR)
    axes.set_ylabel("samples", color=INK, fontsize=9)
    axes.margins(y=0.02)
    axes.tick_params(axis="x", bottom=False, labelbottom=False)
    axes.spines[["top", "right"]].set_visible(False)


def _draw_bubbles(figure: Figure, axes: Axes, counts: Indices) -> None:
    """Draw circles whose area is proportional to the number of samples."""
    clients, classes = counts.shape
    client, label = np.nonzero(counts)
    # In points. Neighbours in a row may touch, because both are rarely large; rows may not.
    widest = min(120 * figure.get_figwidth() / clients, 48 * figure.get_figheight() / classes)
    area = widest**2 * counts[client, label] / counts.max()
    axes.hlines(range(classes), -0.7, clients - 0.3, color=FAINT, linewidth=0.8, zorder=0)
    axes.scatter(client, label, s=np.maximum(area, 0.8), color=COLOUR, alpha=0.75, linewidth=0)
    axes.spines[["top", "right", "left"]].set_visible(False)


def _draw_cells(figure: Figure, axes: Axes, counts: Indices) -> None:
    """Colour cells by the number of samples on a logarithmic scale; empty cells are white."""
    from matplotlib import colormaps  # noqa: PLC0415
    from matplotlib.colors import ListedColormap, LogNorm  # noqa: PLC0415

    colours = ListedColormap(colormaps["YlGnBu"](np.linspace(0.2, 1, 256)))  # a single sample must not look white
    norm = LogNorm(vmin=1, vmax=max(2, counts.max()))
    shown = np.ma.masked_equal(counts.T, 0)
    cells = axes.imshow(shown, aspect="auto", interpolation="nearest", cmap=colours, norm=norm)
    figure.colorbar(cells, ax=axes, label="samples", pad=0.01, fraction=0.03, format="{x:,.0f}")


def _name_classes(axes: Axes, names: Sequence[str]) -> None:
    every = -(-len(names) // 50)  # labels that would overlap are left out
    shown = range(0, len(names), every)
    labels = [name if len(name) <= 16 else name[:15] + "…" for name in names[::every]]
    axes.set_yticks(list(shown), labels, fontsize=9 if len(names) <= 30 else 6.5)
    axes.tick_params(axis="y", length=0)
