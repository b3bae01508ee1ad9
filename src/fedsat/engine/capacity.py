"""Batch sizes and numbers of lanes that fit into memory."""

from __future__ import annotations

import math
import os
from pathlib import Path

import torch
from torch import Tensor, nn

COPIES = 10
"""Model-sized trees that a lane may need: weights, gradients, the method's state, and temporaries."""
MOST = {"cpu": 64, "cuda": 128}
"""Largest number of lanes per device. More lanes give no speedup: the CPU's caches are full, or the GPU is busy."""

PAYING = 1_200_000
"""Most weights, in all lanes together, with which a stack of several runs pays on a CPU.

With more, a step spends its time on arithmetic, which a stack does not save, and its tensors leave the caches
(docs/measurements/engine.md).
"""
PAYING_COMPILED = 4_000_000
"""The same for compiled networks, which need less of the caches."""

CACHED = {"cpu": 1 << 22, "cuda": 1 << 29}
"""Largest number of values in all layer outputs of an evaluation batch, so that they stay in the CPU's caches and still
keep a GPU busy.

ResNet-8 then uses batches of 512 samples. Its worker evaluation took 100 ms per round, 119 ms with 256 and 102 ms with
1,024 samples (H200, `benchmarks/phases.py W3 fedsat --precision bf16`).
"""


COMPILED = 2048
"""Samples in an evaluation batch of a compiled network, which keeps the outputs of only a few samples."""


def evaluation_batch(module: nn.Module, shape: tuple[int, ...], device: torch.device, *, compiled: bool = False) -> int:
    """Return the batch size for evaluation, a power of two between 256 and 4096."""
    if compiled:
        return COMPILED
    wanted = CACHED[device.type] // activations(module, shape)
    return 1 << max(8, min(12, wanted.bit_length() - 1))


def lanes_that_fit(module: nn.Module, shape: tuple[int, ...], batch_size: int, device: torch.device) -> int:
    """Return how many clients can train at once in half of the free memory."""
    weights = sum(tensor.numel() for tensor in module.parameters())
    # The backward pass needs each activation and its gradient. The factor 3 leaves room for temporaries.
    needed = 4 * (COPIES * weights + 3 * batch_size * activations(module, shape))
    return max(1, min(MOST[device.type], free_memory(device) // 2 // needed))


def runs_that_pay(lanes: int, clients: int, weights: int, device: torch.device, *, compiled: bool = False) -> int:
    """Return how many runs, each with so many clients in a round, can train in `lanes` lanes, and faster than alone."""
    if device.type == "cpu":
        lanes = min(lanes, (PAYING_COMPILED if compiled else PAYING) // weights)
    return max(1, lanes // clients)


def activations(module: nn.Module, shape: tuple[int, ...]) -> int:
    """Return the number of values in the outputs of all layers for one sample."""
    sizes: list[int] = []

    def note(_: nn.Module, __: object, output: object) -> None:
        if isinstance(output, Tensor):
            sizes.append(output.numel())

    hooks = [layer.register_forward_hook(note) for layer in module.modules() if not list(layer.children())]
    was_training = module.training
    try:
        with torch.no_grad():
            module.eval()(torch.zeros(1, *shape))
    finally:
        module.train(was_training)
        for hook in hooks:
            hook.remove()
    return math.prod(shape) + sum(sizes)


def free_memory(device: torch.device) -> int:
    """Return the free bytes on the device."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):  # not Linux: half of the machine's memory
        pages, size = ("SC_PHYS_PAGES", "SC_PAGE_SIZE")
        known = pages in getattr(os, "sysconf_names", ())
        return os.sysconf(pages) * os.sysconf(size) // 2 if known else 4 << 30
