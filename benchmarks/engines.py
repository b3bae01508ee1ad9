"""Seconds a round: the stacked engine against the sequential one and against a plain PyTorch loop.

    make bench                                        (or: python benchmarks/engines.py W1 W2 --repeats 5)

Contenders take turns within one process and medians are compared, because single timings on a shared machine are
noise. The plain loop is what one writes without a framework: one module, `torch.optim.SGD`, tensor batches; it plays
with its best number of threads. Written are the table and, beside it, every single timing as JSON.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch.nn import functional

from fedsat.algorithms import algorithms
from fedsat.data import Dataset, Federation, Split
from fedsat.engine import Calls, EngineName, LocalTraining, Precision, make_engine, play_round, start
from fedsat.models import build_model
from fedsat.sampling import batch_order, sample_clients

CALLS = Calls(per_round=15, workers=7, seed=0)
TRAINING = LocalTraining(epochs=5, batch_size=16, lr=0.01, augment=False, seed=0)


@dataclass(frozen=True)
class Workload:
    """A model on data of some shape, split among 100 clients."""

    title: str
    model: dict[str, Any]
    shape: tuple[int, int, int]
    samples: int
    partition: dict[str, Any]


EQUAL = {"name": "iid"}
UNEQUAL = {"name": "ls", "beta": 0.3, "balanced": False}
CIFAR = (3, 32, 32)
WORKLOADS = {
    "W1": Workload("LeNet-5, 600 samples each", {"name": "lenet5"}, (1, 28, 28), 60_000, EQUAL),
    "W2": Workload("MLP, 600 samples each", {"name": "mlp"}, (1, 28, 28), 60_000, EQUAL),
    "W3": Workload("ResNet-8 64-128-256, 500 samples each", {"name": "resnet8"}, CIFAR, 50_000, EQUAL),
    "W3n": Workload("ResNet-8 16-32-64, 500 each", {"name": "resnet8", "width": 16}, CIFAR, 50_000, EQUAL),
    "W4": Workload("W3 with unequal clients (Dirichlet 0.3)", {"name": "resnet8"}, CIFAR, 50_000, UNEQUAL),
}


def dataset(load: Workload) -> Dataset:
    """Noise in the shape of the real data: how long a step takes does not depend on what is in the pictures."""
    rng = np.random.default_rng(0)

    def split(count: int) -> Split:
        return Split(rng.integers(0, 256, (count, *load.shape), dtype=np.uint8), np.arange(count) % 10)

    return Dataset("noise", split(load.samples), split(1000), tuple("0123456789"))


def engine_round(
    name: EngineName, load: Workload, federation: Federation, method: str, device: torch.device, precision: Precision
) -> Callable[[], None]:
    """A function that plays one more round with one of our engines."""
    module = build_model(load.model, federation.dataset.input_shape, 10, 0)
    engine, _ = make_engine(name, module, federation, algorithms.build(method), TRAINING, device, precision)
    training = start(engine)
    return lambda: _synchronised(device, lambda: play_round(engine, training, CALLS))


def plain_round(load: Workload, federation: Federation, device: torch.device) -> Callable[[], None]:
    """A function that plays one more round of FedAvg as a plain loop."""
    images = torch.from_numpy(federation.dataset.train.images).to(device)
    labels = torch.from_numpy(federation.dataset.train.labels).to(device)
    mean, deviation = (
        torch.tensor(v, device=device).view(-1, 1, 1) for v in (federation.dataset.mean, federation.dataset.std)
    )
    model = build_model(load.model, federation.dataset.input_shape, 10, 0).to(device)
    number = 0

    def play() -> None:
        nonlocal number
        number += 1
        clients = sample_clients(0, number, federation.clients, CALLS.per_round).tolist()
        total = sum(len(federation.indices(client)) for client in clients)
        mixed = {name: torch.zeros_like(tensor) for name, tensor in model.state_dict().items()}
        for client in clients:
            held = federation.indices(client)
            local = copy.deepcopy(model).train()
            optimizer = torch.optim.SGD(local.parameters(), lr=TRAINING.lr)
            for order in torch.from_numpy(held[batch_order(0, number, client, len(held), TRAINING.epochs)]).to(device):
                for batch in torch.split(order, TRAINING.batch_size):
                    x = (images[batch].float() / 255 - mean) / deviation
                    optimizer.zero_grad()
                    functional.cross_entropy(local(x), labels[batch]).backward()
                    optimizer.step()
            for name, tensor in local.state_dict().items():
                mixed[name] += (tensor * (len(held) / total)).to(tensor.dtype)
        model.load_state_dict(mixed)

    return lambda: _synchronised(device, play)


def _synchronised(device: torch.device, work: Callable[[], Any]) -> None:
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def timed(play: Callable[[], None], threads: int) -> float:
    """Seconds of one round."""
    torch.set_num_threads(threads)
    began = time.perf_counter()
    play()
    return time.perf_counter() - began


def measure(name: str, repeats: int, device: torch.device, precision: Precision) -> dict[str, Any]:
    """All contenders on one workload, in turns; the first turn warms up and does not count."""
    load = WORKLOADS[name]
    federation = Federation.build(dataset(load), load.partition, 100, 0)
    cores = os.cpu_count() or 1
    contenders: dict[str, tuple[Callable[[], None], int]] = {}
    for method in ("fedavg", "fedsat"):
        for engine in ("stacked", "sequential"):
            play = engine_round(engine, load, federation, method, device, precision)  # type: ignore[arg-type]
            contenders[f"{method} {engine}"] = play, cores
    plain = plain_round(load, federation, device)
    for threads in {1, cores} if device.type == "cpu" else {cores}:
        contenders[f"fedavg plain loop, {threads} threads"] = plain, threads
    times: dict[str, list[float]] = {contender: [] for contender in contenders}
    for turn in range(repeats + 1):
        for contender, (play, threads) in contenders.items():
            seconds = timed(play, threads)
            if turn:
                times[contender].append(seconds)
    return {"workload": name, "title": load.title, "seconds": times}


def show(console: Console, result: dict[str, Any]) -> None:
    """The table of one workload: median seconds a round, and how many times the stacked FedAvg is faster."""
    medians = {contender: float(np.median(times)) for contender, times in result["seconds"].items()}
    table = Table(title=f"{result['workload']}: {result['title']}, 15 of 100 clients, E=5, B=16", title_justify="left")
    for heading in ("", "seconds a round", "fedavg stacked is faster by"):
        table.add_column(heading, justify="left" if not heading else "right")
    for contender, seconds in sorted(medians.items(), key=lambda item: item[1]):
        table.add_row(contender, f"{seconds:.3f}", f"{seconds / medians['fedavg stacked']:.2f}")
    console.print(table)


def main() -> None:
    """Measure the workloads asked for and write what was seen."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("workloads", nargs="*", default=["W1", "W2"], help=", ".join(WORKLOADS))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--precision", default="float32", choices=["float32", "bf16", "float64"])
    parser.add_argument("--out", type=Path, default=Path("results/bench.json"))
    given = parser.parse_args()
    device, console = torch.device(given.device), Console()
    results = []
    for name in given.workloads:
        results.append(measure(name, given.repeats, device, given.precision))
        show(console, results[-1])
    machine = (
        torch.cuda.get_device_name(device) if device.type == "cuda" else f"{os.cpu_count()} cores, {platform.machine()}"
    )
    given.out.parent.mkdir(parents=True, exist_ok=True)
    about = {"machine": machine, "torch": torch.__version__, "precision": given.precision, "results": results}
    given.out.write_text(json.dumps(about, indent=1))
    console.print(f"every timing: {given.out}")


if __name__ == "__main__":
    main()
