"""The page's charts as files for a paper: PNG and SVG, drawn without a screen."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedsat.experiment.folder import speaking_of
from fedsat.experiment.store import file_name
from fedsat.report.chart_data import EFFECTIVE, PALETTE, chart_data
from fedsat.report.groups import Group

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Entry = Mapping[str, Any]


def write_figures(groups: Sequence[Group], folder: Path) -> list[Path]:
    """Write every chart into `folder`: those of all groups together, and those of each group alone."""
    charts = chart_data(groups)
    entries: list[Entry] = charts["groups"]
    curves = [*charts["metrics"], {"name": EFFECTIVE, "title": "effective clients, 1/Σϑ²", "unit": ""}]
    drawn: dict[str, Figure] = {c["name"]: _single(lambda axes, c=c: draw_curves(axes, entries, c)) for c in curves}
    drawn["clients"] = _single(lambda axes: draw_clients(axes, entries), height=1.2 + 0.35 * len(entries))
    for number, federation in enumerate(charts["federations"]):
        suffix = f"-{number + 1}" if len(charts["federations"]) > 1 else ""
        drawn[f"partition{suffix}"] = _single(lambda axes, f=federation: draw_partition(axes, f), width=8)
    for entry in entries:
        name = file_name(entry["label"])
        drawn[f"recall-{name}"] = _single(lambda axes, e=entry: draw_recall(axes, e))
        drawn[f"weights-{name}"] = _single(lambda axes, e=entry: draw_weights(axes, e))
        if any(label is not None for label in entry["weights"]["priority"]):
            drawn[f"priority-{name}"] = _single(lambda axes, e=entry: draw_priority(axes, e))
        if entry["confusion"] is not None:
            drawn[f"confusion-{name}"] = _single(lambda axes, e=entry: draw_confusion(axes, e), width=5, height=4.4)
    paths = []
    with speaking_of(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for name, figure in drawn.items():
            for ending in ("png", "svg"):
                paths.append(folder / f"{name}.{ending}")
                figure.savefig(paths[-1], dpi=200)
    return paths


def _single(draw: Callable[..., None], width: float = 5.0, height: float = 3.2) -> Figure:
    """A figure of one chart."""
    from matplotlib.figure import Figure  # noqa: PLC0415 (slow to import, seldom needed)

    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots()
    draw(axes)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def draw_curves(axes: Axes, entries: Sequence[Entry], curve: Mapping[str, str]) -> None:
    """A metric over rounds: lines are means over seeds, bands reach from the lowest to the highest."""
    for number, entry in enumerate(entries):
        colour, style = PALETTE[number % len(PALETTE)], ("-", "--", ":")[number // len(PALETTE) % 3]
        if curve["name"] not in entry["curves"]:
            continue
        band = {key: np.array(values, dtype=np.float64) for key, values in entry["curves"][curve["name"]].items()}
        axes.plot(entry["rounds"], band["mean"], color=colour, ls=style, lw=1.6, label=entry["label"])
        if "low" in band:
            axes.fill_between(entry["rounds"], band["low"], band["high"], color=colour, alpha=0.16, lw=0)
    axes.set(xlabel="round", ylabel=curve["title"], ylim=(0, 100) if curve["unit"] == "%" else (None, None))
    axes.grid(alpha=0.25)
    axes.legend(frameon=False, fontsize=8, ncols=1 + len(entries) // 6)


def draw_clients(axes: Axes, entries: Sequence[Entry]) -> None:
    """The accuracy of each client at the end: a tick is a client, the bar spans the 10th to the 90th percentile."""
    for number, entry in enumerate(entries):
        values = np.array(entry["clients"] or [np.nan])
        colour = PALETTE[number % len(PALETTE)]
        axes.vlines(values, number - 0.28, number + 0.28, color=colour, alpha=0.4, lw=0.8)
        axes.hlines(number, *np.percentile(values, [10, 90]), color=colour, lw=3)
        axes.plot(np.median(values), number, "o", color="white", mec=colour, mew=1.5, ms=6)
    axes.set(xlabel="accuracy of a client, %", xlim=(0, 101), ylim=(len(entries) - 0.5, -0.5))
    axes.set_yticks(range(len(entries)), [entry["label"] for entry in entries])


def draw_partition(axes: Axes, federation: Entry) -> None:
    """Who holds how much of which class."""
    counts = np.array(federation["rows"])
    _map(axes, np.ma.masked_equal(counts, 0), federation["classes"], label="samples")
    axes.set(xlabel="client", title=federation["label"])


def draw_recall(axes: Axes, entry: Entry) -> None:
    """Recall of each class over rounds."""
    rows, rounds = np.array(entry["recall"]["rows"], dtype=float), entry["recall"]["rounds"]
    _map(axes, rows, entry["classes"], label="recall, %", top=100)
    shown = np.linspace(0, len(rounds) - 1, min(6, len(rounds))).round().astype(int)
    axes.set_xticks(shown, [rounds[index] for index in shown])
    axes.set(xlabel="round", title=entry["label"])


def draw_weights(axes: Axes, entry: Entry) -> None:
    """The weights of the called clients, one dot each."""
    weights = entry["weights"]
    rounds = np.repeat(weights["rounds"], [len(shares) for shares in weights["shares"]])
    axes.scatter(rounds, np.concatenate([[], *weights["shares"]]), s=5, alpha=0.5, color=PALETTE[0], lw=0)
    axes.axhline(weights["equal"], color="grey", ls="--", lw=1)
    axes.set(xlabel="round", ylabel="weight, %", ylim=(0, None), title=f"{entry['label']}, seed {weights['seed']}")


def draw_priority(axes: Axes, entry: Entry) -> None:
    """The class that struggles most, round by round."""
    weights = entry["weights"]
    axes.plot(weights["rounds"], weights["priority"], "o", ms=4, color=PALETTE[0])
    _name_rows(axes, entry["classes"])
    axes.grid(axis="y", alpha=0.25)
    axes.set(xlabel="round", ylim=(len(entry["classes"]) - 0.5, -0.5), title=f"{entry['label']}: priority class")


def draw_confusion(axes: Axes, entry: Entry) -> None:
    """The final confusion matrix in per cent of each true class."""
    matrix = np.array(entry["confusion"], dtype=float)
    _map(axes, matrix, entry["classes"], label="% of the true class", top=100)
    every = -(-len(entry["classes"]) // 20)
    names = [name[:8] for name in entry["classes"][::every]]
    axes.set_xticks(range(0, len(entry["classes"]), every), names, rotation=90 if max(map(len, names)) > 2 else 0)
    axes.set(xlabel="predicted", ylabel="true", title=entry["label"])


def _map(axes: Axes, cells: Any, names: Sequence[str], *, label: str, top: float | None = None) -> None:
    shown = axes.imshow(cells, aspect="auto", interpolation="nearest", cmap="Blues", vmin=0, vmax=top)
    axes.figure.colorbar(shown, ax=axes, label=label, pad=0.02)
    _name_rows(axes, names)


def _name_rows(axes: Axes, names: Sequence[str]) -> None:
    every = -(-len(names) // 25)  # names that would overlap are left out
    axes.set_yticks(range(0, len(names), every), [name[:15] for name in names[::every]], fontsize=8)
