"""A look at the data before training: who holds what, how skewed the data are, and what that suggests."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedsat.data import Dataset, Federation, Summary
from fedsat.data.picture import draw_counts
from fedsat.experiment.config import Config
from fedsat.experiment.folder import speaking_of, write_whole
from fedsat.report.suggestions import Division, Suggestion, suggest

SHADES = " ░▒▓█"
"""From no samples to as many as in the largest cell, on a logarithmic scale."""
UNKNOWN = "?"
"""A cell of which the client does not say whether it has samples."""

REPORT, PICTURE = "look.json", "look.png"
"""The files of a look at real nodes."""
WIDTH = 110
"""Characters per line of the report as text."""


@dataclass(frozen=True, eq=False)
class Look:
    """Who holds what, in numbers, as a picture, and in words."""

    title: str
    division: Division
    notes: tuple[str, ...] = ()
    """On real nodes: what the counts leave out, and why."""

    @staticmethod
    def at(config: Config, dataset: Dataset | None = None) -> Look:
        """Divide a dataset as the configuration says, or the dataset of the configuration, and look at it."""
        dataset = dataset or config.load_dataset()
        federation = Federation.build(dataset, config.partition, config.clients, config.seed)
        split = config.table()["partition"]["name"]
        title = f"{dataset.name}, {split}, {config.clients} clients, seed {config.seed}"
        tested = np.bincount(dataset.test.labels, minlength=dataset.classes)
        return Look(title, division_of(config, federation.class_counts, dataset.class_names, tested))

    @cached_property
    def summary(self) -> Summary:
        """How uneven the division is."""
        return Summary.of(self.division.counts)

    @cached_property
    def suggestions(self) -> list[Suggestion]:
        """What to do about it, with the reasons."""
        return suggest(self.division)

    def draw(self, path: str | Path) -> Path:
        """Write the picture as a PNG file."""
        division = self.division
        return draw_counts(division.counts, division.class_names, Path(path), self.title, division.unknown)

    def show(self, console: Console) -> None:
        """Print the picture, the numbers, what these leave out, and the suggestions."""
        console.print(self.grid(console.width))
        console.print(self.summary_table())
        for note in self.notes:
            console.print(f"note: {note}", markup=False, highlight=False)
        console.print(self.suggestion_table())

    def text(self) -> str:
        """Return what `show` prints."""
        lines = StringIO()
        self.show(Console(file=lines, width=WIDTH))
        return lines.getvalue()

    def write(self, folder: Path) -> None:
        """Write the picture, and then the counts as JSON, from which `read` makes the same report."""
        division = self.division
        table = {
            "title": self.title,
            "notes": self.notes,
            **vars(division),
            **{name: _plain(getattr(division, name)) for name in ("counts", "test_counts", "partial")},
        }
        with speaking_of(folder):
            folder.mkdir(parents=True, exist_ok=True)
            self.draw(folder / PICTURE)
            write_whole(folder / REPORT, json.dumps(table, ensure_ascii=False).encode())

    @staticmethod
    def read(folder: Path) -> Look:
        """Read what `write` wrote."""
        table = json.loads((folder / REPORT).read_text(encoding="utf-8"))
        title, notes = table.pop("title"), tuple(table.pop("notes"))
        arrays = {name: _array(table.pop(name)) for name in ("test_counts", "partial")}
        return Look(title, Division(**{**table, **arrays, "counts": np.array(table["counts"])}), notes)

    def __repr__(self) -> str:
        return f"<Look at {self.title}: skew {self.summary.skew:.2f}, {len(self.suggestions)} suggestions>"

    def _repr_html_(self) -> str:
        """Return the numbers and the suggestions, as tables in notebooks."""
        head = "<tr><th></th><th>minimum</th><th>median</th><th>maximum</th></tr>"
        rows = "".join(_html_row("th", name, *cells) for name, cells in _rows(self.summary))
        notes = "".join(f"<p>note: {escape(note)}</p>" for note in self.notes)
        advice = "".join(_html_row("td", each.topic, each.what, each.why) for each in self.suggestions)
        return (
            f"<table><caption>{escape(self.title)}</caption>{head}{rows}</table>"
            f"<p>{escape(_skew(self.summary))}</p>{notes}"
            f"<table><tr><th></th><th>suggestion</th><th>because</th></tr>{advice}</table>"
        )

    def summary_table(self) -> Table:
        """Return the numbers, as a table for terminals."""
        table = Table(title=self.title, box=box.SIMPLE_HEAD, caption_justify="left")
        for heading in ("", "minimum", "median", "maximum"):
            table.add_column(heading, justify="right" if heading else "left")
        for name, cells in _rows(self.summary):
            table.add_row(name, *cells)
        table.caption = (
            "effective classes: exp(entropy of class shares), equal to the number of classes if all are equally "
            f"frequent, and close to 1 if one dominates\n{_skew(self.summary)}"
        )
        return table

    def suggestion_table(self) -> Table:
        """Return the suggestions, as a table for terminals."""
        table = Table(title="suggestions", box=box.SIMPLE_HEAD, pad_edge=False)
        table.add_column("")
        table.add_column("suggestion", ratio=2, overflow="fold")
        table.add_column("because", ratio=3, overflow="fold")
        for each in self.suggestions:
            table.add_row(each.topic, Text(each.what), Text(each.why))
        return table

    def grid(self, width: int) -> Text:
        """Return a picture of at most `width` characters: a row per class, a column per client or group of clients."""
        names = [name if len(name) <= 16 else name[:15] + "…" for name in self.division.class_names]
        margin = max(map(len, names)) + 1
        group = max(1, -(-self.division.clients // max(1, width - margin)))
        starts = np.arange(0, self.division.clients, group)
        cells = np.add.reduceat(self.division.counts, starts, axis=0)
        levels = np.ceil((len(SHADES) - 1) * np.log1p(cells) / np.log1p(max(1, cells.max()))).astype(int)
        signs = np.array(list(SHADES))[levels]
        unknown = np.logical_or.reduceat(self.division.unknown, starts, axis=0)
        signs[unknown & (cells == 0)] = UNKNOWN
        rows = ["".join(signs[:, label]) for label in range(len(names))]
        drawn = "\n".join(f"{name:>{margin - 1}} {row}" for name, row in zip(names, rows, strict=True))
        each = "a client" if group == 1 else f"{group} clients"
        hint = f"; {UNKNOWN}: none, or too few to report" if unknown.any() else ""
        return Text(f"{drawn}\n{'':>{margin}}each column is {each}; the darker, the more samples{hint}", no_wrap=True)


def division_of(
    config: Config, counts: np.ndarray, class_names: Sequence[str], tested: np.ndarray | None = None
) -> Division:
    """Return a division with the settings of a configuration that matter for it."""
    batch = config.batch_size if isinstance(config.batch_size, int) else None
    return Division(counts, class_names, config.per_round, batch, tested)


def _plain(counts: np.ndarray | None) -> list[Any] | None:
    return None if counts is None else counts.tolist()


def _array(counts: list[int] | None) -> np.ndarray | None:
    return None if counts is None else np.array(counts)


def _rows(summary: Summary) -> list[tuple[str, list[str]]]:
    ranges = {
        "samples per client": summary.size,
        "classes per client": summary.classes_held,
        "effective classes per client": summary.effective_classes,
        "share of a client's largest class": summary.largest_share,
        "largest over smallest class of a client": summary.imbalance,
        "samples per class": summary.class_size,
        "clients per class": summary.holders,
    }
    return [(name, [f"{one:,.4g}" for one in (each.low, each.median, each.high)]) for name, each in ranges.items()]


def _skew(summary: Summary) -> str:
    largest, smallest = summary.class_size.high, summary.class_size.low
    ratio = f"{largest / smallest:,.3g} times as many samples as the smallest" if smallest else "samples, others none"
    return (
        f"skew: {summary.skew:.2f}, the mean total variation distance between a client's class shares and the overall "
        f"ones, from 0 (equal) to 1 (disjoint); {summary.chance:.2f} in a random division\n"
        f"overall: {summary.balance:.3g} effective classes; the largest class has {ratio}"
    )


def _html_row(first: str, name: str, *cells: str) -> str:
    return f"<tr><{first}>{escape(name)}</{first}>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>"
