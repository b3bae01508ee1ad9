"""A lower bound on the time of a round on this machine's CPU: only its matrix products and convolutions.

    python benchmarks/roofline.py

Every layer with weights is timed at the shapes of a stacked step (15 clients, batches of 16, float32): the forward
pass, the gradient of the weights added to them in place, and, except for the first layer, the gradient of the input. A
round is 190 steps. Gathering, activations, pooling, the loss, the method and Python are left out. The minimum time of
Python and autograd is measured with an almost empty network: images of 2×2 pixels, layers of two neurons.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from engines import EQUAL, SAMPLING, OurEngine, Workload, dataset
from local import BATCH_SIZE, CLIENTS, EPOCHS, PER_ROUND
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional

from fedsat.data import Federation
from fedsat.models import build_model

STEPS = EPOCHS * -(-600 // BATCH_SIZE)
SHAPE = (1, 28, 28)


def layers(model: nn.Module) -> list[tuple[nn.Module, tuple[int, ...], tuple[int, ...]]]:
    """Layers with weights, and the shapes of their input and output for one sample, in the order of use."""
    seen: list[tuple[nn.Module, tuple[int, ...], tuple[int, ...]]] = []

    def note(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        seen.append((layer, tuple(inputs[0].shape[1:]), tuple(output.shape[1:])))

    for layer in model.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            layer.register_forward_hook(note)
    model(torch.zeros(1, *SHAPE))
    return seen


def products(layer: Any, into: tuple[int, ...], out: tuple[int, ...], first: bool) -> list[Callable[[], Any]]:
    """Return the products of a layer in a step."""
    clients = PER_ROUND
    if isinstance(layer, nn.Linear):
        weight, x = torch.randn(clients, *layer.weight.shape), torch.randn(clients, into[0], BATCH_SIZE)
        grad, bias = torch.randn(clients, out[0], BATCH_SIZE), torch.zeros(clients, out[0], 1)
        works = [
            lambda: torch.baddbmm(bias, weight, x),
            lambda: weight.baddbmm_(grad, x.transpose(1, 2), alpha=-1e-9),
            lambda: torch.bmm(weight.transpose(1, 2), grad),
        ]
    else:
        last = torch.channels_last
        x = torch.randn(BATCH_SIZE, clients * into[0], *into[1:]).contiguous(memory_format=last)
        weight, bias = torch.randn(clients * out[0], *layer.weight.shape[1:]), torch.randn(clients * out[0])
        grad = torch.randn(BATCH_SIZE, clients * out[0], *out[1:]).contiguous(memory_format=last)
        settings = [layer.stride, layer.padding, layer.dilation]

        def back(mask: list[bool]) -> Any:
            given = (grad, x, weight, [len(bias)], *settings, False, [0, 0], clients, mask)
            return torch.ops.aten.convolution_backward(*given)

        works = [
            lambda: functional.conv2d(x, weight, bias, *settings, clients),
            lambda: back([False, True, True]),
            lambda: back([True, False, False]),
        ]
    return works[:2] if first else works


def seconds(work: Callable[[], Any], repeats: int) -> float:
    """Return the fastest of several timings, which other programs affect least."""
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return float(np.min(times))


def bare_round(method: str) -> float:
    """Return the CPU seconds of a round with an almost empty MLP and one thread."""
    load = Workload("bare", {"name": "mlp", "hidden": [2, 2]}, (1, 2, 2), 60_000, EQUAL)
    federation = Federation.build(dataset(load), load.partition, CLIENTS, 0)
    engine = OurEngine("stacked", load, federation, method, torch.device("cpu"), "float32", SAMPLING, threads=1)
    times = []
    for _ in range(6):
        began = time.process_time()
        engine.run_round()
        times.append(time.process_time() - began)
    return min(times)


def main() -> None:
    """Measure and show."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=200)
    given = parser.parse_args()
    table = Table(title="only the products of a round, fastest of all timings", title_justify="left")
    for heading in ("", "threads", "GFLOP per step", "GFLOP/s", "least seconds per round"):
        table.add_column(heading, justify="left" if not heading else "right")
    for name in ("mlp", "lenet5"):
        for threads in sorted({1, os.cpu_count() or 1}):
            torch.set_num_threads(threads)
            flops = total = 0.0
            for place, (layer, into, out) in enumerate(layers(build_model({"name": name}, SHAPE, 10, 0))):
                works = products(layer, into, out, first=place == 0)
                places = int(np.prod(out[1:]))  # a weight is used once for each position of the output
                flops += 2 * layer.weight.numel() * places * PER_ROUND * BATCH_SIZE * len(works)  # type: ignore[union-attr, operator]
                total += sum(seconds(work, given.repeats) for work in works)
            rate, least = flops / total / 1e9, STEPS * total
            table.add_row(name, str(threads), f"{flops / 1e9:.3f}", f"{rate:.0f}", f"{least:.3f}")
    console = Console()
    console.print(table)
    for method in ("fedavg", "fedsat"):
        console.print(f"a round of {method} with an almost empty network: {bare_round(method):.3f} s")


if __name__ == "__main__":
    main()
