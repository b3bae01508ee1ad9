"""How many clients train at once: as many as the round has, as long as their memory fits."""

from __future__ import annotations

import math
from pathlib import Path

import torch
from torch import Tensor, nn

COPIES = 10
"""Model-sized trees that a lane may need: weights, gradients, a method's states, and what follows on them."""
MOST = {"cpu": 64, "cuda": 128}
"""More lanes than these gain nothing: a CPU's caches are full, a GPU is busy."""

CACHED = {"cpu": 1 << 22, "cuda": 1 << 29}
"""Numbers that an evaluation may have in all layers' outputs together: what stays in a CPU's caches, and what keeps a
GPU busy. ResNet-8 then goes by 512 samples: its workers took 100 ms a round, by 256 119, by 1,024 102 (an H200,
`benchmarks/phases.py W3 fedsat --precision bf16`)."""


def evaluation_batch(module: nn.Module, shape: tuple[int, ...], device: torch.device) -> int:
    """Samples to evaluate together: a power of two between 256 and 4096."""
    wanted = CACHED[device.type] // activations(module, shape)
    return 1 << max(8, min(12, wanted.bit_length() - 1))


def lanes_that_fit(module: nn.Module, shape: tuple[int, ...], batch_size: int, device: torch.device) -> int:
    """Clients that can train side by side in half of the memory that is free."""
    weights = sum(tensor.numel() for tensor in module.parameters())
    # An activation is kept for the backward pass, and its gradient is formed: twice, with room for what goes between.
    needed = 4 * (COPIES * weights + 3 * batch_size * activations(module, shape))
    return max(1, min(MOST[device.type], free_memory(device) // 2 // needed))


def activations(module: nn.Module, shape: tuple[int, ...]) -> int:
    """Numbers that one sample's forward pass leaves in the outputs of all layers."""
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
    """Bytes that are free on the device."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):  # not every system tells
        return 4 << 30
