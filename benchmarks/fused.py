"""The time of ResNet-8's convolutions in evaluation mode, each with its norm, shortcut and ReLU, in microseconds.

    python benchmarks/fused.py --batch 512

Needs a CUDA GPU. "apart" is cuDNN's convolution and our kernel for the rest, "triton" and "cudnn" are one kernel (see
`fedsat.engine.kernels.fused`).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
import triton
from tiles import LAYERS
from torch import Tensor
from torch.nn import functional

from fedsat.engine.base import tuned_kernels
from fedsat.engine.kernels.fused import by_cudnn, by_triton
from fedsat.engine.kernels.triton_norm import normalise

FOLLOWED = {(64, 64, 3, 1, 32): (False, True), (128, 128, 3, 1, 16): (True,), (256, 256, 3, 1, 8): (True,)}
"""Whether a shortcut is added, for the layers that occur with one; others occur once, without."""


def ways(batch: int, layer: tuple[int, ...], added: bool) -> dict[str, Callable[[], Tensor]]:
    """Return the ways to compute a layer."""
    inputs, outputs, kernel, stride, side = layer
    like = {"device": "cuda", "dtype": torch.bfloat16}
    x = torch.randn(batch, inputs, side, side, **like).contiguous(memory_format=torch.channels_last)
    weight = torch.randn(outputs, inputs, kernel, kernel, **like).contiguous(memory_format=torch.channels_last)
    bias, running = torch.randn(outputs, device="cuda"), torch.rand(2, 1, outputs, device="cuda")
    geometry, relu = (stride, kernel // 2), kernel > 1
    shape = batch, outputs, side // stride, side // stride
    shortcut = torch.randn(shape, **like).contiguous(memory_format=torch.channels_last) if added else None

    def apart() -> Tensor:
        out = functional.conv2d(x, weight, None, *geometry)
        return normalise(out, bias[None], bias[None], shortcut, relu, (running[0], running[1]), 1e-5)

    found = {"apart": apart, "triton": lambda: by_triton(x, weight, bias, shortcut, relu, *geometry)}
    if shortcut is not None:
        found["cudnn"] = lambda: by_cudnn(x, weight, bias, shortcut, *geometry)
    return found


def main() -> None:
    """Time and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--batch", type=int, default=512)
    asked = parser.parse_args()
    totals: dict[str, float] = {}
    for layer in LAYERS:
        for added in FOLLOWED.get(layer, (False,)):
            times = {}
            for name, call in ways(asked.batch, layer, added).items():
                with torch.inference_mode(), tuned_kernels():
                    call()
                    times[name] = 1e3 * triton.testing.do_bench_cudagraph(call, rep=20, return_mode="median")
            for name in ("apart", "triton", "cudnn"):
                totals[name] = totals.get(name, 0.0) + times.get(name, times["triton"])
            shown = ", ".join(f"{name} {spent:.0f}" for name, spent in times.items())
            print(f"{layer}{' + shortcut' if added else ''}: {shown}", flush=True)
    print("all:", ", ".join(f"{name} {spent:.0f}" for name, spent in totals.items()))


if __name__ == "__main__":
    main()
