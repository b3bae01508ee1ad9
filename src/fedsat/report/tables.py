"""Tables of results for the terminal."""

from __future__ import annotations

from typing import Any

from rich import box
from rich.table import Table

from fedsat.experiment import Run


def run_table(run: Run) -> Table:
    """What one run came to: the last round, the mean of the last ten, the best."""
    summary, names = run.summary, run.setup.federation.dataset.class_names
    table = Table(title=f"{run.setup.config.method}, {summary['rounds']} rounds", box=box.SIMPLE_HEAD)
    for heading in ("", "accuracy %", "worst class %", "lowest client %"):
        table.add_column(heading, justify="left" if not heading else "right")
    for model, quoted in _models(summary):
        table.add_row(
            f"last round{model}",
            percent(quoted["test_accuracy"]),
            f"{percent(quoted['worst_recall'])} ({names[quoted['worst_class']]})",
            percent(quoted["lowest_client"]),
        )
        ten = quoted["last_ten"]
        table.add_row(
            f"mean of the last ten{model}",
            *map(percent, (ten["test_accuracy"], ten["worst_recall"], ten["lowest_client"])),
        )
        best = quoted["best"]
        table.add_row(f"best round ({best['round']}){model}", percent(best["test_accuracy"]), "", "")
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
        for model, quoted in _models(summary):
            ten = quoted["last_ten"]
            table.add_row(
                run.setup.config.method + model,
                percent(ten["test_accuracy"]),
                percent(ten["worst_recall"]),
                percent(ten["lowest_client"]),
                percent(quoted["test_accuracy"]),
                percent(quoted["best"]["test_accuracy"]),
                f"{summary['seconds']:.1f}",
                f"{(summary['bytes_down'] + summary['bytes_up']) / 1e6:,.0f}",
            )
    return table


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
