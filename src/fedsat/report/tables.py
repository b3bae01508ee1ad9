"""Tables of results for the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from fedsat.experiment.store import StoredRun
from fedsat.metrics import COMPARED, Metric
from fedsat.report.comparison import comparison
from fedsat.report.groups import Group, common_settings


def run_table(run: StoredRun) -> Table:
    """What one run came to: the last round, the mean of the last ten, the best."""
    summary, names = run.summary, run.summary["class_names"]
    table = Table(title=f"{run.method}, {summary['rounds']} rounds", box=box.SIMPLE_HEAD)
    shown = (*COMPARED, *run.own_metrics)
    for heading in ("", *(each.heading for each in shown)):
        table.add_column(Text(heading), justify="left" if not heading else "right")
    for model, quoted in _models(summary):
        last = {each.name: _written(each, quoted) for each in shown}
        last["worst_class_recall"] += f" ({names[quoted['worst_class']]})"
        table.add_row(f"last round{model}", *map(Text, last.values()))
        table.add_row(f"mean of the last ten{model}", *(_written(each, quoted["last_ten"]) for each in shown))
        best = quoted["best"]
        table.add_row(f"best round ({best['round']}){model}", percent(best["accuracy"]), *[""] * (len(shown) - 1))
    table.caption = f"{summary['seconds']:.1f} s, {traffic(summary)}{misfortunes(summary)}"
    return table


def _written(metric: Metric, values: Mapping[str, Any]) -> str:
    return metric.written(values[metric.name]) if values.get(metric.name) is not None else "–"


def misfortunes(summary: Mapping[str, Any]) -> str:
    """How often clients did not answer, or were refused; empty if all went well."""
    words = {"missing": "calls not answered", "refused": "updates refused", "refused_workers": "reports refused"}
    return "".join(f", {summary[what]} {words[what]}" for what in words if what in summary)


def comparison_table(groups: Sequence[Group], target: float | None = None) -> Table:
    """Methods side by side over seeds; the best of each column in bold, ties with it marked."""
    shown = comparison(groups, target)
    # Little air, so that it fits into 80 columns.
    table = Table(title=Text(common_settings(groups)), box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    table.add_column("", overflow="fold", min_width=min(12, max(len(label) for (label, _), *_ in shown.rows)))
    for heading in shown.headings[1:]:
        table.add_column(heading.replace(" ", "\n", 1), justify="right", no_wrap=True)
    tied = [any(mark == "tie" for _, mark in column) for column in zip(*shown.rows, strict=True)][1:]
    for (label, _), *cells in shown.rows:
        marked = (_marked(text, mark, room) for (text, mark), room in zip(cells, tied, strict=True))
        table.add_row(Text(label), *marked)
    table.caption = shown.legend
    return table


def _marked(text: str, mark: str, room: bool) -> Text:
    """A cell: the best in bold, a tie with ≈, for which its column keeps room, so that numbers stay in line."""
    sign = "≈" if mark == "tie" else " " if room else ""
    return Text(text + sign, style="bold" if mark == "best" else "")


def _models(summary: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """The global model's numbers, and those of every other model that the method reports, with its name."""
    others = summary.get("models", {}).items()
    return [("", summary), *((f", {name}", numbers) for name, numbers in others)]


def percent(share: float) -> str:
    """A share as per cent with one decimal."""
    return f"{100 * share:.1f}"


def traffic(summary: dict[str, int]) -> str:
    """The bytes a real federation would have moved."""
    return f"{summary['bytes_down'] / 1e6:,.0f} MB down, {summary['bytes_up'] / 1e6:,.0f} MB up"
