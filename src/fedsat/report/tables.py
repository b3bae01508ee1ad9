"""Tables of results for terminals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Group as Lines
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from fedsat.experiment.stopping import TEST
from fedsat.experiment.store import StoredRun
from fedsat.experiment.summary import mean_over
from fedsat.metrics import CHOICES, MEASURES, METRICS, Measure, Metric, compared
from fedsat.report.comparison import ComparisonTable, comparison
from fedsat.report.groups import Group, common_settings

WIDE = 4
"""More metrics than this are rows of a run's table, not columns."""
FULL = 9
"""Most columns of a comparison that fit into 80 characters."""
SHOWN_CLASSES = 40
"""Classes that a run's table lists."""


def run_table(run: StoredRun) -> Table:
    """The results of one run: the last round with confidence intervals, the mean of the last ten, and the best."""
    summary, names = run.summary, run.summary["class_names"]
    shown = (*compared(run.imbalanced), *run.own_metrics)
    results: list[tuple[str, list[str]]] = []
    for model, numbers in _models(summary):
        last = {each.name: each.shown(numbers.get(each.name)) for each in shown}
        last["worst_class_recall"] += f" ({names[numbers['worst_class']]})"
        results.append((f"last round{model}", list(last.values())))
        if not model and (ranges := summary.get("final", {}).get("intervals")):
            results.append(("  95 % interval", [each.range(ranges.get(each.name)) for each in shown]))
        means = [each.shown(numbers["last_ten"].get(each.name)) for each in shown]
        results.append((f"mean of {mean_over(summary['rounds'])}{model}", means))
        best = numbers["best"]
        highest = [percent(best["accuracy"]) if each is METRICS["accuracy"] else "" for each in shown]
        results.append((f"best test accuracy (round {best['round']}){model}", highest))
    table = Table(title=f"{run.method}, {summary['rounds']} rounds", box=box.SIMPLE_HEAD)
    headings, rows = [each.heading for each in shown], results
    if len(shown) > WIDE:
        cells = zip(*(values for _, values in results), strict=True)
        rows = [(heading, list(row)) for heading, row in zip(headings, cells, strict=True)]
        headings = [label.strip() for label, _ in results]
    for heading in ("", *headings):
        table.add_column(Text(heading), justify="left" if not heading else "right")
    for label, values in rows:
        table.add_row(label, *map(Text, values))
    table.caption = f"{summary['seconds']:.1f} s, {traffic(summary)}{faults(summary)}"
    if "epsilon" in summary:
        table.caption += f", ε = {summary['epsilon']:.3g}"
    return table


def served_line(run: StoredRun) -> str:
    """Which of the run's models is used for predictions, and why."""
    chosen = run.stored.get("selected")
    if chosen is None:
        none = run.table.get("validation") or "epsilon" in run.summary  # private clients report no such results
        hint = "" if none else "; with --validation 0.2, the best one would be chosen"
        return f"model to use: that of the last round{hint}"
    name, on_test = chosen["metric"].removeprefix(TEST), chosen["metric"].startswith(TEST)
    metric = {each.name: each for each in (*METRICS.values(), *run.own_metrics)}.get(name) or Metric(
        name, name, unit=""
    )
    where = "the test set, which makes this value optimistic" if on_test else "validation samples"
    value = f"{metric.label} {metric.written(chosen['value'])} {metric.unit}".rstrip()
    return f"model to use: the best one, of round {chosen['round']} ({value} on {where})"


def class_table(run: StoredRun) -> Table | None:
    """The final model's measures of each class, if the run's metrics are about any: recall, and those measures."""
    found, chosen = run.stored.get("final"), run.table.get("metrics", ())
    names = {CHOICES[name].measure for name in chosen if name in CHOICES}
    if not found or not any(each.of_classes and each.name in names for each in MEASURES):
        return None
    shown = [each for each in MEASURES if each.name in found["classes"] and each.name in {"recall", *names}]
    return classes_table(found["classes"], run.stored["class_names"], shown, "classes, final model")


def classes_table(
    values: Mapping[str, Any], names: Sequence[str], measures: Sequence[Measure], title: str = ""
) -> Table:
    """Measures of each class, `values` by their names, and its number of samples."""
    table = Table(title=title or None, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    for heading in ("class", "samples", *(f"{each.label} {each.unit}".rstrip() for each in measures)):
        table.add_column(Text(heading), justify="left" if heading == "class" else "right")
    for place, name in enumerate(names[:SHOWN_CLASSES]):
        cells = [each.shown(values[each.name][place]) for each in measures]
        table.add_row(Text(name), f"{values['samples'][place]:,}", *cells)
    if len(names) > SHOWN_CLASSES:
        table.caption = f"the first {SHOWN_CLASSES} of {len(names)} classes"
    return table


def faults(summary: Mapping[str, Any]) -> str:
    """How often clients did not respond, and how many updates and reports were refused; empty if none."""
    words = {"missing": "missing responses", "refused": "refused updates", "refused_workers": "refused reports"}
    return "".join(f", {summary[what]} {words[what]}" for what in words if what in summary)


def comparison_table(groups: Sequence[Group], target: float | None = None) -> RenderableType:
    """Methods side by side over seeds, with the best value of each column in bold and ties marked."""
    return terminal_table(comparison(groups, target), common_settings(groups))


def terminal_table(shown: ComparisonTable, title: str = "") -> RenderableType:
    """Return a table of results with its legend, for a terminal.

    With many metrics, the methods are columns instead of rows, if they are fewer.
    """
    # Narrow padding, so that the table fits into 80 columns; the box adds a space.
    full = len(shown.headings) >= FULL
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 0 if full else 1, 0, 0), pad_edge=False, show_edge=False)
    tied = [any(mark == "tie" for _, mark in column) for column in zip(*shown.rows, strict=True)]
    rows = [[_marked(text, mark, room) for (text, mark), room in zip(row, tied, strict=True)] for row in shown.rows]
    headings = [heading.replace(" ", "\n", 1) for heading in shown.headings]
    if len(rows) < len(headings) > FULL:
        headings, *rows = [list(column) for column in zip(map(Text, shown.headings), *rows, strict=True)]
    elif full:
        for row in rows:
            row[0].plain = row[0].plain.replace(", ", "\n")
    longest = max(len(word) for row in rows for word in row[0].plain.split())
    table.add_column("", overflow="fold", min_width=min(13, longest))
    for heading in headings[1:]:
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    # Not as the table's own title and caption, which are cut off where the table is wider than the terminal.
    above, below = Text(title, style="italic"), Text("\n".join([shown.legend, *shown.terms]), style="dim italic")
    return Lines(*[above] * bool(title), table, below)


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
