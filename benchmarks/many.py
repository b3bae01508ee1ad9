"""Several runs of a model: together in one stack, one after another, and in processes of their own.

    fedsat data get mnist
    python benchmarks/many.py mlp lenet5 --method fedavg                           (on a GPU if there is one)
    python benchmarks/many.py mlp --set hidden=[16] --set per_round=5 --seeds 3
    python benchmarks/many.py mlp --method fedsat --grid gamma=0,0.1,0.2,0.3,0.4,0.5,0.6,0.7,0.8,0.9

The runs differ in their seeds, or in a setting. It prints ratios to the time of one run. On a CPU it counts the
processor's seconds, which other programs disturb less, and on a GPU elapsed seconds. The contenders take turns, round
by round, and medians are compared; the first round does not count. Each round includes the evaluation of the clients'
models by workers, but not the test of the global model. "Together" always uses one stack, also where `fedsat compare`
would not: the last column says what it would do. With `--jobs N`, it also times `fedsat compare` with and without
`--jobs`: elapsed seconds of whole commands.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

import fedsat
from fedsat.cli.options import read_settings
from fedsat.engine import StackedEngine
from fedsat.experiment import Run
from fedsat.experiment.settings import parse_value
from fedsat.experiment.together import SharedTraining

SETTINGS: dict[str, Any] = {"dataset": "mnist", "partition": "lsmc", "classes_per_client": 2, "evaluate_every": 10**6}


def main() -> None:
    """Time every model, and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("models", nargs="*", default=["mlp", "lenet5"])
    parser.add_argument("--method", default="fedavg")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--grid", metavar="KEY=A,B", help="a setting in which the runs differ, instead of the seed")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="any other setting")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--jobs", type=int, help="also time whole commands, with this number of processes")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    count = len(variants(given))
    columns = ("", "one run, s", f"{count} in turn", "together", "spread", "largest difference", "compare uses")
    what = given.grid or f"{count} seeds"
    table = Table(*columns, title=f"{given.method}, {what}, ratios to one run")
    for model in given.models:
        table.add_row(model, *timed(model, given))
    Console().print(table)
    for model in given.models if given.jobs else ():
        calls = {"--jobs 1": ["--jobs", "1"], f"--jobs {given.jobs}": ["--jobs", str(given.jobs)]}
        print(model, {name: f"{command(model, given, options):.1f} s" for name, options in calls.items()})


def timed(model: str, given: argparse.Namespace) -> Sequence[str]:
    """Return the cells of a model's row."""
    settings = {**SETTINGS, "model": model, "algorithm": given.method, "rounds": given.rounds}
    settings |= dict(read_settings(given.set))
    apart, together = ([opened({**settings, **own}) for own in variants(given)] for _ in range(2))
    shared, ones, ratios = SharedTraining(), list[float](), list[float]()
    for _ in range(given.rounds):
        alone = [seconds(run.run_round, run) for run in apart]
        stacked = seconds(lambda: shared.train_ahead(together), together[0])
        stacked += sum(seconds(run.run_round, run) for run in together)
        ones.append(sum(alone) / len(alone))
        ratios.append(stacked / ones[-1])
    far = max(
        float((tensor - other.model.params[name]).abs().max())
        for run, other in zip(apart, together, strict=True)
        for name, tensor in run.model.params.items()
    )
    engine, low, high = apart[0].setup.engine, min(ratios[1:]), max(ratios[1:])
    most = engine.runs_at_once(apart[0].setup.config.per_round) if isinstance(engine, StackedEngine) else 1
    share = f"stacks of up to {most}" if most > 1 else "no stack"
    cells = f"{median(ones[1:]):.3f}", f"{len(apart)}.00", f"{median(ratios[1:]):.2f}", f"{low:.2f}–{high:.2f}"
    return *cells, f"{far:.0e}", share


def variants(given: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the settings in which the runs differ."""
    if not given.grid:
        return [{"seed": seed} for seed in range(given.seeds)]
    key, _, values = given.grid.partition("=")
    return [{key: parse_value(value)} for value in values.split(",")]


def opened(settings: dict[str, Any]) -> Run:
    """Return a run without files."""
    return fedsat.prepare(fedsat.configure(**settings))


def seconds(action: Callable[[], object], run: Run) -> float:
    """Return how long the action takes."""
    on_gpu = run.setup.device.type == "cuda"
    clock = time.perf_counter if on_gpu else time.process_time
    began = clock()
    action()
    if on_gpu:
        torch.cuda.synchronize()
    return clock() - began


def command(model: str, given: argparse.Namespace, options: Sequence[str]) -> float:
    """Return the elapsed seconds of a whole `fedsat compare`."""
    named = {**SETTINGS, "model": model, "rounds": given.rounds, "seeds": given.seeds, "methods": given.method}
    words = [word for key, value in named.items() for word in (f"--{key.replace('_', '-')}", str(value))]
    words += [word for text in given.set for word in ("--set", text)]
    with tempfile.TemporaryDirectory() as out:
        began = time.perf_counter()
        call = [sys.executable, "-m", "fedsat", "compare", *words, *options, "--out", f"{out}/runs"]
        subprocess.run(call, check=True, stdout=subprocess.DEVNULL)
        return time.perf_counter() - began


if __name__ == "__main__":
    main()
