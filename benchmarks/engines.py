"""Seconds per round of the stacked engine, the sequential engine, a plain PyTorch loop, and other simulators.

    make bench                                        (or: python benchmarks/engines.py W1 W2 --repeats 5)
    python benchmarks/engines.py W1 W2 --clients 5 15 45 --only stacked peers

Contenders take turns within one run and medians are compared, because single timings on a shared machine are noisy. The
uncompiled one is the stacked engine with `--compile off`. The plain loop is ordinary PyTorch code without a framework:
one module, `torch.optim.SGD`, tensor batches. It and the stacked engine are timed with one thread and with all, the
sequential engine with one. On a CPU, Flower and pfl, with one process per core, and FedJAX, with all cores, are timed
if they are installed (`make bench-peers`). The first turn, in which processes start, does not count. The output is a
table with the loss on the test set after all rounds, and every timing as JSON, from which `page.py` makes a page of the
documentation.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import json
import os
import shlex
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from local import BATCH_SIZE, CLIENTS, EPOCHS, LR, PER_ROUND, Work
from peers import Peer, installed
from ratios import rows
from rich.console import Console
from rich.table import Table

from fedsat.algorithms import algorithms
from fedsat.data import Dataset, Federation, Split
from fedsat.engine import Compile, EngineName, Precision, make_engine
from fedsat.experiment.environment import environment
from fedsat.models import build_model
from fedsat.rounds import LocalTraining, Sampling, run_round, start
from fedsat.rounds.sampling import sample_clients

SAMPLING = Sampling(per_round=PER_ROUND, workers=7, seed=0)
KINDS = ("stacked", "uncompiled", "sequential", "plain", "peers")
FOR_PEERS = ("W1", "W2")
"""Workloads that the peers have; FedJAX needs its own copy of a network."""
TRAINING = LocalTraining(epochs=EPOCHS, batch_size=BATCH_SIZE, lr=LR, augment=False, seed=0)


@dataclass(frozen=True)
class Workload:
    """A model, and data of some shape that are split among 100 clients."""

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
    "W5": Workload("ResNet-18, 500 samples each", {"name": "resnet18"}, CIFAR, 50_000, EQUAL),
    "W5i": Workload(
        "ResNet-18, ImageNet's stem, 500 each", {"name": "resnet18", "stem": "imagenet"}, CIFAR, 50_000, EQUAL
    ),
}


def dataset(load: Workload) -> Dataset:
    """Return noise with the shape of the real data and a weak class signal, so that losses can be compared."""
    rng = np.random.default_rng(0)
    classes = rng.integers(0, 256, (10, *load.shape))

    def split(count: int) -> Split:
        labels = np.arange(count) % 10
        noise = rng.integers(0, 256, (count, *load.shape), dtype=np.uint8)
        return Split((noise * 0.75 + classes[labels] * 0.25).astype(np.uint8), labels)

    return Dataset("noise", split(load.samples), split(1000), tuple("0123456789"))


def local_work(load: Workload, federation: Federation, per_round: int, device: torch.device) -> Work:
    """Return the workload in the form that the plain loop and the peers use."""
    data = federation.dataset
    pictures = (data.train.images, data.train.labels, np.float32(data.mean), np.float32(data.std))
    images, labels, mean, std, test, answers = (
        torch.from_numpy(array).to(device) for array in (*pictures, data.test.images, data.test.labels)
    )
    held = [federation.indices(client) for client in range(federation.clients)]
    return Work(load.model, per_round, images, labels, mean, std, held, test, answers)


class Contender(Protocol):
    """Runs rounds that are timed."""

    def run_round(self) -> float:
        """Run a round and return its seconds."""

    def test_loss(self) -> float:
        """Return the loss on the test set after all rounds, which shows that the contender did the work."""


class OurEngine:
    """One of the package's engines."""

    def __init__(
        self,
        name: EngineName,
        load: Workload,
        federation: Federation,
        method: str,
        device: torch.device,
        kind: Precision,
        sampling: Sampling,
        threads: int,
        compile: Compile = "auto",
    ) -> None:
        self._threads, self._sampling = threads, sampling
        module = build_model(load.model, federation.dataset.input_shape, 10, 0)
        built = algorithms.build(method)
        self._engine, _ = make_engine(name, module, federation, built, TRAINING, device, kind, compile)
        self._training = start(self._engine)

    def run_round(self) -> float:
        """Run a round without the evaluation on the test set, and return its seconds."""
        with clock(self._engine.device, self._threads) as seconds:
            run_round(self._engine, self._training, self._sampling)
        return seconds[0]

    def test_loss(self) -> float:
        """Return the engine's loss on the test set."""
        return self._engine.test(self._training.server.model).loss


class PlainLoop:
    """FedAvg in plain PyTorch."""

    def __init__(self, work: Work, threads: int) -> None:
        self._work, self._threads = work, threads
        self._model, self._round = work.new_model().to(work.images.device), 0

    def run_round(self) -> float:
        """Train one client after another, and return the seconds."""
        with clock(self._work.images.device, self._threads) as seconds:
            self._round += 1
            clients = sample_clients(0, self._round, CLIENTS, self._work.per_round).tolist()
            total = sum(len(self._work.held[client]) for client in clients)
            mixed = {name: torch.zeros_like(tensor) for name, tensor in self._model.state_dict().items()}
            for client in clients:
                local = copy.deepcopy(self._model)
                self._work.train(local, client, self._round)
                share = len(self._work.held[client]) / total
                for name, tensor in local.state_dict().items():
                    mixed[name] += (tensor * share).to(tensor.dtype)
            self._model.load_state_dict(mixed)
        return seconds[0]

    def test_loss(self) -> float:
        """Return the model's loss on the test set."""
        return self._work.test_loss(self._model)


@contextmanager
def clock(device: torch.device, threads: int) -> Iterator[list[float]]:
    """Measure the seconds spent in the block with a number of threads, until the device has finished its work."""
    seconds: list[float] = []
    torch.set_num_threads(threads)
    began = time.perf_counter()
    yield seconds
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    seconds.append(time.perf_counter() - began)


def measure(
    name: str,
    sampled: int,
    repeats: int,
    device: torch.device,
    precision: Precision,
    threads: Sequence[int],
    only: Sequence[str],
    peers: Sequence[str],
) -> dict[str, Any]:
    """Time all contenders on one workload, in turns; the first turn starts processes, and does not count."""
    load, sampling = WORKLOADS[name], replace(SAMPLING, per_round=sampled)
    federation = Federation.build(dataset(load), load.partition, CLIENTS, 0)
    work = local_work(load, federation, sampled, device)
    with ExitStack() as stack:
        contenders: dict[str, Contender] = {}

        def enter(engine: EngineName, method: str, count: int, compile: Compile = "auto") -> None:
            own = OurEngine(engine, load, federation, method, device, precision, sampling, count, compile)
            title = engine if compile == "auto" else "uncompiled"
            contenders[f"{method} {title}, {_plural(count)}"] = own

        for method in ("fedavg", "fedsat"):
            for count in threads if "stacked" in only else ():
                enter("stacked", method, count)
            for count in threads if "uncompiled" in only and device.type == "cpu" else ():
                enter("stacked", method, count, "off")
            if "sequential" in only:
                enter("sequential", method, threads[0])
        for count in threads if "plain" in only else ():
            contenders[f"fedavg plain loop, {_plural(count)}"] = PlainLoop(work, count)
        if "peers" in only and name in FOR_PEERS:
            file = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "work.npz"
            work.save(file)
            for script in peers:
                peer = stack.enter_context(closing(Peer(script, file)))
                contenders[f"fedavg {peer.name}"] = peer
        times: dict[str, list[float]] = {contender: [] for contender in contenders}
        for turn in range(repeats + 1):
            for title, contender in contenders.items():
                seconds = contender.run_round()
                if turn:
                    times[title].append(seconds)
        losses = {title: contender.test_loss() for title, contender in contenders.items()}
    return {"workload": name, "title": load.title, "clients": sampled, "seconds": times, "test_loss": losses}


def show(console: Console, result: dict[str, Any]) -> None:
    """Print the table of one workload."""
    title = f"{result['workload']}: {result['title']}, {result['clients']} of 100 clients, E=5, B=16"
    table = Table(title=title, title_justify="left")
    for heading in ("", "s per round", "times as long", "test loss"):
        table.add_column(heading, justify="left" if not heading else "right", no_wrap=True)
    for row in rows(result):
        loss = result["test_loss"][row.contender]
        table.add_row(row.contender, f"{row.seconds:.3f}", row.faster, f"{loss:.4f}")
    console.print(table)


def _plural(threads: int) -> str:
    return f"{threads} thread{'s' if threads > 1 else ''}"


def main() -> None:
    """Time the given workloads and write the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("workloads", nargs="*", default=["W1", "W2"], help=", ".join(WORKLOADS))
    parser.add_argument("--clients", type=int, nargs="+", default=[PER_ROUND], help="clients sampled in a round")
    parser.add_argument("--only", nargs="+", choices=KINDS, default=KINDS, help="contenders to time [default: all]")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--precision", default="float32", choices=["float32", "bf16", "float64"])
    parser.add_argument(
        "--threads", type=int, nargs="+", help="threads of our engines and the plain loop [default: one, and all cores]"
    )
    parser.add_argument("--out", type=Path, default=Path("results/bench/latest.json"))
    given = parser.parse_args()
    device, console = torch.device(given.device), Console()
    peers, missing = installed() if device.type == "cpu" else ([], [])
    if missing:
        console.print(f"not measured, because they are not installed: {', '.join(missing)} (make bench-peers)")
    cores = os.cpu_count() or 1
    threads = given.threads or (sorted({1, cores}) if device.type == "cpu" else [cores])
    results = []
    about = {**environment(device), "cores": cores, "precision": given.precision}
    about["command"] = shlex.join(["python", "benchmarks/engines.py", *sys.argv[1:]])
    given.out.parent.mkdir(parents=True, exist_ok=True)
    for name, sampled in itertools.product(given.workloads, given.clients):
        results.append(measure(name, sampled, given.repeats, device, given.precision, threads, given.only, peers))
        show(console, results[-1])
        given.out.write_text(json.dumps({**about, "results": results}, indent=1))
    console.print(f"every timing: {given.out}")


if __name__ == "__main__":
    main()
