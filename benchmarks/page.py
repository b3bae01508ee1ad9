"""Write docs/measurements/speed.md and its plots from the timings that `engines.py` has written to results/bench.

python benchmarks/engines.py W1 W2 --out results/bench/cpu.json
python benchmarks/engines.py W1 W2 --clients 5 15 45 --only stacked peers --repeats 3 --out results/bench/cpu-sweep.json
python benchmarks/engines.py W1 W2 W3 W4 --precision bf16 --out results/bench/gpu.json
python benchmarks/engines.py W2 W3 --clients 5 15 45 90 --only stacked --repeats 3 --precision bf16 \\
  --out results/bench/gpu-sweep.json
python benchmarks/page.py

The page shows the files that there are, so it can be written again after each of these commands.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from ratios import Row, rows

ROOT = Path(__file__).parents[1]
PAGE, PLOTS = ROOT / "docs/measurements/speed.md", ROOT / "docs/assets"
HEAD = """# Speed

<!-- Written by benchmarks/page.py. -->

A round of FedAvg and FedSat with our engines, and of FedAvg with other simulators and in a plain PyTorch loop. All do
the same local training, which the last column shows: the loss on the test set after all rounds. Contenders take turns,
so that other programs on the machine slow all of them down alike. The third column says how many times longer a round
takes than with the fastest stacked FedAvg in the same turn: the median and the range over the turns. Peers with
processes have one for each core; FedJAX compiles with XLA. [Engine](engine.md) explains where the time goes.
"""
DEVICES = {"cpu": "On a CPU", "gpu": "On a GPU"}


def main() -> None:
    """Write the plots and the page."""
    parts = [HEAD]
    for device, heading in DEVICES.items():
        turns, sweep = kept(device), kept(f"{device}-sweep")
        if turns or sweep:
            parts.append(f"## {heading}\n")
        if turns:
            parts += [about(turns), *(table(result) for result in turns["results"])]
        if sweep:
            drawn = PLOTS / f"speed-{device}.svg"
            plot(sweep["results"]).savefig(drawn)
            parts += [f"### {heading}, more and fewer clients\n", about(sweep)]
            parts += [f"![Seconds per round](../assets/{drawn.name})\n"]
            parts += [sizes(results) for results in by_workload(sweep["results"])]
    if len(parts) == 1:
        raise SystemExit(f"results/bench has no timings; write them with the commands above:\n{__doc__}")
    PAGE.write_text("\n".join(parts), encoding="utf-8")


def kept(name: str) -> dict[str, Any] | None:
    """Return what `engines.py` has written to results/bench, if it has."""
    path = ROOT / f"results/bench/{name}.json"
    found: dict[str, Any] | None = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None
    return found


def about(kept: dict[str, Any]) -> str:
    """Return the command, the machine and the versions."""
    return (
        f"`{kept['command']}`, {kept['finished'][:10]}: {kept['device']}, {kept['cores']} cores, "
        f"torch {kept['torch']}, Python {kept['python']}.\n"
    )


def table(result: dict[str, Any]) -> str:
    """Return the table of a workload."""
    lines = [
        f"### {result['title']}\n",
        "| | s per round | times as long | test loss |",
        "| --- | ---: | ---: | ---: |",
    ]
    for row in rows(result):
        lines.append(
            f"| {row.contender} | {row.seconds:.3f} | {row.faster} | {result['test_loss'][row.contender]:.4f} |"
        )
    return "\n".join([*lines, ""])


def by_workload(results: Sequence[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Return the results of each workload, in the order of the numbers of clients."""
    for name in dict.fromkeys(result["workload"] for result in results):
        own = [result for result in results if result["workload"] == name]
        yield sorted(own, key=lambda result: result["clients"])


def best(result: dict[str, Any]) -> dict[str, Row]:
    """Return the fastest row of each contender, whatever its number of threads."""
    found: dict[str, Row] = {}
    for row in rows(result):
        found.setdefault(row.contender.partition(",")[0], row)
    return found


def sizes(results: Sequence[dict[str, Any]]) -> str:
    """Return a table of seconds by contender and number of clients."""
    each = [best(result) for result in results]
    heads = [f"{result['clients']} clients" for result in results]
    lines = [
        f"#### {results[0]['title']}\n",
        f"| s per round | {' | '.join(heads)} |",
        "| --- |" + " ---: |" * len(each),
    ]
    for contender in each[0]:
        lines.append(f"| {contender} | {' | '.join(f'{found[contender].seconds:.3f}' for found in each)} |")
    return "\n".join([*lines, ""])


def plot(results: Sequence[dict[str, Any]]) -> Figure:
    """Draw seconds per round over the number of clients, for each workload."""
    workloads = list(by_workload(results))
    figure = Figure(figsize=(4.5 * len(workloads), 3.6), layout="constrained")
    panels: list[Axes] = list(figure.subplots(1, len(workloads), squeeze=False)[0])
    contenders = list(dict.fromkeys(contender for own in workloads for contender in best(own[0])))
    for axes, own in zip(panels, workloads, strict=True):
        clients = [result["clients"] for result in own]
        for contender in best(own[0]):
            seconds, color = [best(result)[contender].seconds for result in own], f"C{contenders.index(contender)}"
            axes.plot(clients, seconds, marker="o", label=contender, color=color)
        axes.set(
            xscale="log", yscale="log", title=own[0]["title"], xlabel="clients per round", ylabel="seconds per round"
        )
        axes.set_xticks(clients, [str(number) for number in clients], minor=False)
        low, high = axes.get_ylim()
        ticks = [tick for tick in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20) if low <= tick <= high]
        axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks], minor=False)
        axes.minorticks_off()
        axes.grid(alpha=0.3)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    return figure


if __name__ == "__main__":
    main()
