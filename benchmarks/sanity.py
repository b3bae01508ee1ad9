"""A comparison of all methods on MNIST, which shows whether a baseline is broken.

    fedsat data get mnist
    python benchmarks/sanity.py

It uses the paper's protocol with few rounds: MLP, 100 clients, 15 per round, 5 epochs, batches of 16, η = 0.01. Every
method has its default options, and two methods have an additional row with another setting. Runs are stored in
runs/sanity and not repeated, so the command can be interrupted. It writes results/sanity.csv, with a row for each run
and reported model, and results/sanity.md, with the means over seeds.
"""

from __future__ import annotations

import argparse
import csv
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np

import fedsat
from fedsat.algorithms import algorithms
from fedsat.experiment.folder import CONFIG, SUMMARY, write_whole

SPLITS: dict[str, dict[str, Any]] = {
    "LS β=0.3": {"name": "ls", "beta": 0.3},
    "LSMC n=2": {"name": "lsmc", "classes_per_client": 2},
}
VARIANTS: dict[str, dict[str, Any]] = {
    "moon, μ=0.1": {"algorithm": {"name": "moon", "mu": 0.1}},
    "fedlada, η=0.001": {"algorithm": "fedlada", "lr": 0.001},
}
"""Additional rows with a setting that explains the result of the defaults (docs/concepts/methods.md)."""
MEASURES = {
    "last ten": "mean accuracy of the last ten rounds",
    "last": "accuracy of the last round",
    "best": "accuracy of the best round, which is chosen on test data",
    "worst-class recall": "mean of the last ten rounds",
    "worst-client accuracy": "mean of the last ten rounds",
    "seconds": "of the run",
}
Row = dict[str, Any]


def main() -> None:
    """Train the missing runs and write both tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--dataset", default="mnist")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--seeds", type=int, default=2, help="number of seeds, starting at 0")
    parser.add_argument("--methods", nargs="+", default=[*algorithms, *VARIANTS], help="rows of the table")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--runs", type=Path, default=Path("runs/sanity"))
    parser.add_argument("--results", type=Path, default=Path("results"))
    given = parser.parse_args()
    rows: list[Row] = []
    made: dict[str, Any] = {}
    for seed in range(given.seeds):
        for split, partition in SPLITS.items():
            for method in given.methods:
                settings = {
                    "dataset": given.dataset, "model": "mlp", "partition": partition, "algorithm": method,
                    "rounds": given.rounds, "seed": seed, "device": given.device, **VARIANTS.get(method, {}),
                }  # fmt: skip
                name = method.replace(", ", "-")
                folder = given.runs / f"{partition['name']}-{name}-seed{seed}"
                summary = finished(fedsat.configure(**settings), folder)
                new = rows_of(summary, method, split, seed)
                print(f"{split}  {method}  seed {seed}: {100 * new[0]['last ten']:.1f} %", flush=True)
                rows += new
                made = summary["made_with"]
    given.results.mkdir(parents=True, exist_ok=True)
    write_csv(rows, given.results / "sanity.csv")
    title = f"{given.dataset}, MLP, {given.rounds} rounds, mean over {given.seeds} seeds"
    about = (
        f"\nMade by `python benchmarks/sanity.py`, seeds 0 to {given.seeds - 1}, with fedsat {made['fedsat']}, torch "
        f"{made['torch']}, {made['device']}, {made['threads']} threads; the seconds are those of a busy machine.\n"
    )
    write_whole(given.results / "sanity.md", (markdown(rows, title) + about).encode())
    print(f"written: {given.results / 'sanity.csv'}, {given.results / 'sanity.md'}")


def finished(config: fedsat.Config, folder: Path) -> dict[str, Any]:
    """Return the summary of a run: the stored one if it was completed with the same settings, otherwise a new one."""
    try:
        summary: dict[str, Any] = json.loads((folder / SUMMARY).read_text(encoding="utf-8"))
        if summary["status"] == "completed" and (folder / CONFIG).read_text(encoding="utf-8") == config.to_toml():
            return summary
    except (FileNotFoundError, ValueError):
        pass
    if (folder / CONFIG).exists():
        shutil.rmtree(folder)
    return fedsat.train(fedsat.prepare(config, folder)).summary


def rows_of(summary: dict[str, Any], method: str, split: str, seed: int) -> list[Row]:
    """Return a row for the global model and one for every other model that the method reports."""
    models = {method: summary} | {f"{method}, {name}": numbers for name, numbers in summary.get("models", {}).items()}
    return [
        {
            "split": split,
            "method": name,
            "seed": seed,
            "last ten": numbers["last_ten"]["accuracy"],
            "last": numbers["accuracy"],
            "best": numbers["best"]["accuracy"],
            "worst-class recall": numbers["last_ten"]["worst_class_recall"],
            "worst-client accuracy": numbers["last_ten"]["worst_client_accuracy"],
            "seconds": summary["seconds"],
        }
        for name, numbers in models.items()
    ]


def write_csv(rows: list[Row], path: Path) -> None:
    """Write all rows, with shares between 0 and 1."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows({key: f"{v:.4f}" if isinstance(v, float) else v for key, v in row.items()} for row in rows)


def markdown(rows: list[Row], title: str) -> str:
    """Return a table for each split: means over seeds in per cent, with the best of each column in bold."""
    lines = [f"# {title}", "", *(f"- {name}: {meaning}" for name, meaning in MEASURES.items()), ""]
    for split in dict.fromkeys(row["split"] for row in rows):
        methods = list(dict.fromkeys(row["method"] for row in rows if row["split"] == split))
        means = {
            method: {
                measure: float(np.mean([r[measure] for r in rows if (r["split"], r["method"]) == (split, method)]))
                for measure in MEASURES
            }
            for method in methods
        }
        leader = max(methods, key=lambda method: means[method]["last ten"])
        lines += [f"## {split}", "", f"Leads by the last ten rounds: {leader}.", ""]
        lines += [f"| | {' | '.join(MEASURES)} |", f"|---|{'---:|' * len(MEASURES)}"]
        for method in methods:
            cells = [f"| {method} "]
            for measure, value in means[method].items():
                text = f"{value:.0f}" if measure == "seconds" else f"{100 * value:.1f}"
                best = measure != "seconds" and value == max(other[measure] for other in means.values())
                cells.append(f"| **{text}** " if best else f"| {text} ")
            lines.append("".join(cells) + "|")
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
