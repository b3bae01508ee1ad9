"""The charts of the page as files for papers and slides: PNG, SVG and PDF."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedsat.experiment.folder import speaking_of
from fedsat.experiment.store import file_name
from fedsat.report.chart_data import EFFECTIVE, chart_data
from fedsat.report.groups import Group

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Entry = Mapping[str, Any]
FORMATS = ("png", "svg", "pdf")
FONTS: Any = {"pdf.fonttype": 42}
"""TrueType fonts in PDF files: publishers reject Type 3, which is Matplotlib's default."""
LEGEND_ROWS = 20
"""The largest number of entries in a column of a legend."""


def write_figures(groups: Sequence[Group], folder: Path) -> list[Path]:
    """Write every chart to `folder`, those of all groups together and those of each group, and return the paths."""
    from matplotlib import rc_context  # noqa: PLC0415 (slow to import, rarely needed)

    paths = []
    with speaking_of(folder), rc_context(FONTS):
        folder.mkdir(parents=True, exist_ok=True)
        for name, figure in _figures(chart_data(groups)).items():
            for ending in FORMATS:
                paths.append(folder / f"{name}.{ending}")
                figure.savefig(paths[-1], dpi=200)
    return paths


def _figures(charts: Mapping[str, Any]) -> dict[str, Figure]:
    """All figures by the names of their files."""
    entries: list[Entry] = charts["groups"]
    curves = [*charts["metrics"], {"name": EFFECTIVE, "title": "effective clients, 1/Σϑ²", "unit": ""}]
    drawn = {curve["name"]: curve_figure(entries, curve) for curve in curves}
    drawn["clients"] = _client_figure(entries)
    for number, federation in enumerate(charts["federations"]):
        suffix = f"-{number + 1}" if len(charts["federations"]) > 1 else ""
        drawn[f"partition{suffix}"] = _single(lambda axes, f=federation: draw_partition(axes, f), width=8)
    for entry, name in zip(entries, _file_names(entries), strict=True):
        drawn[f"recall-{name}"] = _single(lambda axes, e=entry: draw_recall(axes, e))
        drawn[f"weights-{name}"] = _single(lambda axes, e=entry: draw_weights(axes, e))
        if any(label is not None for label in entry["weights"]["priority"]):
            drawn[f"priority-{name}"] = _single(lambda axes, e=entry: draw_priority(axes, e))
        if entry["confusion"] is not None:
            drawn[f"confusion-{name}"] = _single(lambda axes, e=entry: draw_confusion(axes, e), width=5, height=4.4)
    return drawn


def _file_names(entries: Sequence[Entry]) -> list[str]:
    """Labels as parts of file names, all different even where file systems ignore case."""
    names: list[str] = []
    for entry in entries:
        name = plain = file_name(entry["label"].replace(", ", "-").replace(" ", "-"))
        while name.lower() in {other.lower() for other in names}:
            name = f"{plain}-{len(names) + 1}"
        names.append(name)
    return names


def curve_figure(entries: Sequence[Entry], curve: Mapping[str, str]) -> Figure:
    """A figure of one metric over the rounds, with a legend next to the plot."""
    figure = _single(lambda axes: draw_curves(axes, entries, curve))
    handles = [line for line in figure.axes[0].lines if not str(line.get_label()).startswith("_")]
    if handles:
        _add_legend(figure, handles)
    return figure


def _client_figure(entries: Sequence[Entry]) -> Figure:
    """A figure of the clients' accuracies, enlarged by the labels of the rows so that the plot keeps its size."""
    figure = _single(lambda axes: draw_clients(axes, entries), height=1.2 + 0.35 * len(entries))
    width, height = figure.get_size_inches()
    labels = max(label.get_window_extent().width for label in figure.axes[0].get_yticklabels())
    figure.set_size_inches(width + labels / figure.dpi, height)
    return figure


def _add_legend(figure: Figure, handles: Sequence[Any]) -> None:
    """Put a legend to the right of the plot, and enlarge the figure so that the plot keeps its size."""
    columns = -(-len(handles) // LEGEND_ROWS)
    legend = figure.legend(
        handles=handles, loc="outside right upper", frameon=False, fontsize=8, ncols=columns, handlelength=3
    )
    box, (width, height) = legend.get_window_extent(), figure.get_size_inches()
    figure.set_size_inches(width + box.width / figure.dpi, max(height, box.height / figure.dpi + 0.2))


def _single(draw: Callable[..., None], width: float = 5.0, height: float = 3.2) -> Figure:
    """A figure of one chart; sizes are in inches."""
    from matplotlib.figure import Figure  # noqa: PLC0415 (slow to import, rarely needed)

    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots()
    draw(axes)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def draw_curves(axes: Axes, entries: Sequence[Entry], curve: Mapping[str, str]) -> None:
    """A metric over the rounds: lines are means over seeds, bands range from the lowest to the highest seed."""
    for entry in entries:
        if curve["name"] not in entry["curves"]:
            continue
        band = {key: np.array(values, dtype=np.float64) for key, values in entry["curves"][curve["name"]].items()}
        style = (0, tuple(entry["dash"])) if entry["dash"] else "-"
        marker = "o" if len(entry["rounds"]) == 1 else None
        axes.plot(
            entry["rounds"],
            band["mean"],
            color=entry["colour"],
            ls=style,
            lw=1.6,
            marker=marker,
            ms=4,
            label=entry["label"],
        )
        if "low" in band:
            axes.fill_between(entry["rounds"], band["low"], band["high"], color=entry["colour"], alpha=0.16, lw=0)
    axes.set(xlabel="round", ylabel=curve["title"], ylim=(0, 100) if curve["unit"] == "%" else (None, None))
    axes.grid(alpha=0.25)


def draw_clients(axes: Axes, entries: Sequence[Entry]) -> None:
    """The final accuracy of each client: ticks are clients, bars range from the 10th to the 90th percentile."""
    for number, entry in enumerate(entries):
        values = np.array(entry["clients"] or [np.nan])
        colour = entry["colour"]
        axes.vlines(values, number - 0.28, number + 0.28, color=colour, alpha=0.4, lw=0.8)
        axes.hlines(number, *np.percentile(values, [10, 90]), color=colour, lw=3)
        axes.plot(np.median(values), number, "o", color="white", mec=colour, mew=1.5, ms=6)
    axes.set(xlabel="accuracy of a client, %", xlim=(0, 101), ylim=(len(entries) - 0.5, -0.5))
    axes.set_yticks(range(len(entries)), [entry["label"] for entry in entries])


def draw_partition(axes: Axes, federation: Entry) -> None:
    """The number of samples that each client holds of each class."""
    counts = np.array(federation["rows"])
    _draw_map(axes, np.ma.masked_equal(counts, 0), federation["classes"], label="samples")
    axes.set(xlabel="client", title=federation["label"])


def draw_recall(axes: Axes, entry: Entry) -> None:
    """Recall of each class over the rounds."""
    rows, rounds = np.array(entry["recall"]["rows"], dtype=float), entry["recall"]["rounds"]
    _draw_map(axes, rows, entry["classes"], label="recall, %", top=100)
    shown = np.linspace(0, len(rounds) - 1, min(6, len(rounds))).round().astype(int)
    axes.set_xticks(shown, [rounds[index] for index in shown])
    axes.set(xlabel="round", title=entry["label"])


def draw_weights(axes: Axes, entry: Entry) -> None:
    """The weights of the clients that responded, one dot each."""
    weights = entry["weights"]
    rounds = np.repeat(weights["rounds"], [len(shares) for shares in weights["shares"]])
    axes.scatter(rounds, np.concatenate([[], *weights["shares"]]), s=5, alpha=0.5, color=entry["colour"], lw=0)
    axes.axhline(weights["equal"], color="grey", ls="--", lw=1)
    axes.set(xlabel="round", ylabel="weight, %", ylim=(0, None), title=f"{entry['label']}, seed {weights['seed']}")


def draw_priority(axes: Axes, entry: Entry) -> None:
    """The priority class of each round: the class with the greatest need."""
    weights = entry["weights"]
    axes.plot(weights["rounds"], weights["priority"], "o", ms=4, color=entry["colour"])
    _name_rows(axes, entry["classes"])
    axes.grid(axis="y", alpha=0.25)
    axes.set(xlabel="round", ylim=(len(entry["classes"]) - 0.5, -0.5), title=f"{entry['label']}: priority class")


def draw_confusion(axes: Axes, entry: Entry) -> None:
    """The final confusion matrix in per cent of each true class."""
    matrix = np.array(entry["confusion"], dtype=float)
    _draw_map(axes, matrix, entry["classes"], label="% of the true class", top=100)
    every = -(-len(entry["classes"]) // 20)
    names = [name[:8] for name in entry["classes"][::every]]
    axes.set_xticks(range(0, len(entry["classes"]), every), names, rotation=90 if max(map(len, names)) > 2 else 0)
    axes.set(xlabel="predicted", ylabel="true", title=entry["label"])


def _draw_map(axes: Axes, cells: Any, names: Sequence[str], *, label: str, top: float | None = None) -> None:
    shown = axes.imshow(cells, aspect="auto", interpolation="nearest", cmap="Blues", vmin=0, vmax=top)
    axes.figure.colorbar(shown, ax=axes, label=label, pad=0.02)
    _name_rows(axes, names)


def _name_rows(axes: Axes, names: Sequence[str]) -> None:
    every = -(-len(names) // 25)  # names would overlap otherwise
    axes.set_yticks(range(0, len(names), every), [name[:15] for name in names[::every]], fontsize=8)
