"""Tables of results for the terminal."""

from __future__ import annotations

from rich import box
from rich.table import Table

from fedsat.experiment import Run


def run_table(run: Run) -> Table:
    """What one run came to: the last round, the mean of the last ten, the best."""
    summary, names = run.summary, run.setup.federation.dataset.class_names
    table = Table(title=f"{run.setup.config.method}, {summary['rounds']} rounds", box=box.SIMPLE_HEAD)
    for heading in ("", "accuracy %", "worst class %", "lowest client %"):
        table.add_column(heading, justify="left" if not heading else "right")
    table.add_row(
        "last round",
        percent(summary["test_accuracy"]),
        f"{percent(summary['worst_recall'])} ({names[summary['worst_class']]})",
        percent(summary["lowest_client"]),
    )
    ten = summary["last_ten"]
    table.add_row(
        "mean of the last ten", *map(percent, (ten["test_accuracy"], ten["worst_recall"], ten["lowest_client"]))
    )
    best = summary["best"]
    table.add_row(f"best round ({best['round']})", percent(best["test_accuracy"]), "", "")
    table.caption = f"{summary['seconds']:.1f} s, {traffic(summary)}"
    return table


def comparison_table(runs: list[Run]) -> Table:
    """Methods side by side: means of the last ten rounds, with the last and the best round's accuracy beside."""
    config = runs[0].setup.config
    setting = f"{config.dataset}, {config.table()['partition']['name']}, {config.rounds} rounds, seed {config.seed}"
    table = Table(title=f"{setting}: means of the last ten rounds", box=box.SIMPLE_HEAD)
    for heading in ("", "accuracy %", "worst class %", "lowest client %", "last %", "best %", "seconds", "MB"):
        table.add_column(heading, justify="left" if not heading else "right")
    for run in runs:
        summary = run.summary
        ten = summary["last_ten"]
        table.add_row(
            run.setup.config.method,
            percent(ten["test_accuracy"]),
            percent(ten["worst_recall"]),
            percent(ten["lowest_client"]),
            percent(summary["test_accuracy"]),
            percent(summary["best"]["test_accuracy"]),
            f"{summary['seconds']:.1f}",
            f"{(summary['bytes_down'] + summary['bytes_up']) / 1e6:,.0f}",
        )
    return table


def percent(share: float) -> str:
    """A share as per cent with one decimal."""
    return f"{100 * share:.1f}"


def traffic(summary: dict[str, int]) -> str:
    """The bytes a real federation would have moved."""
    return f"{summary['bytes_down'] / 1e6:,.0f} MB down, {summary['bytes_up'] / 1e6:,.0f} MB up"
