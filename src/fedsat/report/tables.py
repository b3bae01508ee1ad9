"""Tables of results for terminals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from fedsat.experiment.store import StoredRun
from fedsat.experiment.summary import mean_over
from fedsat.metrics import COMPARED, Metric
from fedsat.report.comparison import ComparisonTable, comparison
from fedsat.report.groups import Group, common_settings


def run_table(run: StoredRun) -> Table:
    """The results of one run: the last round, the mean of the last ten, and the best."""
    summary, names = run.summary, run.summary["class_names"]
    table = Table(title=f"{run.method}, {summary['rounds']} rounds", box=box.SIMPLE_HEAD)
    shown = (*COMPARED, *run.own_metrics)
    for heading in ("", *(each.heading for each in shown)):
        table.add_column(Text(heading), justify="left" if not heading else "right")
    for model, numbers in _models(summary):
        last = {each.name: _cell(each, numbers) for each in shown}
        last["worst_class_recall"] += f" ({names[numbers['worst_class']]})"
        table.add_row(f"last round{model}", *map(Text, last.values()))
        table.add_row(
            f"mean of {mean_over(summary['rounds'])}{model}", *(_cell(each, numbers["last_ten"]) for each in shown)
        )
        best = numbers["best"]
        table.add_row(f"best round ({best['round']}){model}", percent(best["accuracy"]), *[""] * (len(shown) - 1))
    table.caption = f"{summary['seconds']:.1f} s, {traffic(summary)}{faults(summary)}"
    if "epsilon" in summary:
        table.caption += f", ε = {summary['epsilon']:.3g}"
    return table


def _cell(metric: Metric, values: Mapping[str, Any]) -> str:
    return metric.written(values[metric.name]) if values.get(metric.name) is not None else "–"


def faults(summary: Mapping[str, Any]) -> str:
    """How often clients did not respond, and how many updates and reports were refused; empty if none."""
    words = {"missing": "missing responses", "refused": "refused updates", "refused_workers": "refused reports"}
    return "".join(f", {summary[what]} {words[what]}" for what in words if what in summary)


def comparison_table(groups: Sequence[Group], target: float | None = None) -> Table:
    """Methods side by side over seeds, with the best value of each column in bold and ties marked."""
    return terminal_table(comparison(groups, target), common_settings(groups))


def terminal_table(shown: ComparisonTable, title: str = "") -> Table:
    """Return a table of results with its legend, for a terminal."""
    # Narrow padding, so that the table fits into 80 columns.
    table = Table(title=Text(title) if title else None, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    table.caption, table.caption_justify = Text("\n".join([shown.legend, *shown.terms])), "left"
    table.add_column("", overflow="fold", min_width=min(12, max(len(label) for (label, _), *_ in shown.rows)))
    for heading in shown.headings[1:]:
        table.add_column(heading.replace(" ", "\n", 1), justify="right", no_wrap=True)
    tied = [any(mark == "tie" for _, mark in column) for column in zip(*shown.rows, strict=True)][1:]
    for (label, _), *cells in shown.rows:
        marked = (_marked(text, mark, room) for (text, mark), room in zip(cells, tied, strict=True))
        table.add_row(Text(label), *marked)
    return table


def _marked(text: str, mark: str, room: bool) -> Text:
    """A cell: the best value in bold, a tie with ≈. Columns with a tie leave room for the sign in every cell."""
    sign = "≈" if mark == "tie" else " " if room else ""
    return Text(text + sign, style="bold" if mark == "best" else "")


def _models(summary: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """The numbers of the global model, and those of other models that the method evaluates, with their names."""
    others = summary.get("models", {}).items()
    return [("", summary), *((f", {name}", numbers) for name, numbers in others)]


def percent(share: float) -> str:
    """A share in per cent with one decimal."""
    return f"{100 * share:.1f}"


def traffic(summary: dict[str, int]) -> str:
    """The traffic of a real federation."""
    return f"{summary['bytes_down'] / 1e6:,.0f} MB down, {summary['bytes_up'] / 1e6:,.0f} MB up"
