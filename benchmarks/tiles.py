"""Times the tiles of the Triton kernels: microseconds of every layer of ResNet-8, forward and backward, tile by tile.

    python benchmarks/tiles.py --clients 15 3

Needs a CUDA GPU. Tiles are compiled first, several at a time, and then timed one after another. For each kernel and
shape, the current choice is printed first, then the fastest ones; "norm back" is forward and backward together.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any

import torch
import triton
from torch import Tensor

from fedsat.engine.kernels import triton_conv, triton_norm
from fedsat.engine.kernels.tiles import Tile
from fedsat.engine.kernels.triton_conv import FEW

BATCH = 16
LAYERS = [(3, 64, 3, 1, 32), (64, 64, 3, 1, 32), (64, 128, 3, 2, 32), (128, 128, 3, 1, 16), (64, 128, 1, 2, 32),
          (128, 256, 3, 2, 16), (256, 256, 3, 1, 8), (128, 256, 1, 2, 16)]  # fmt: skip
"""Inputs, outputs, kernel, stride and image size of ResNet-8's convolutions."""
NORMS = [(64, 32), (128, 16), (256, 8)]
"""Channels and image size of its normalisations."""
TILES = [
    Tile(*sizes, *how)
    for sizes, ways in {
        (64, 64, 64): [(4, 1), (4, 3), (4, 5)],
        (128, 64, 64): [(4, 1), (4, 3), (4, 4), (8, 1), (8, 4)],
        (256, 64, 64): [(4, 3), (8, 1), (8, 3), (8, 4)],
        (64, 128, 64): [(4, 1), (4, 3), (4, 4)],
        (128, 128, 64): [(4, 3), (4, 4), (8, 1), (8, 3), (8, 4)],
        (128, 128, 32): [(4, 4), (8, 5)],
        (256, 128, 64): [(8, 3), (8, 4)],
        (64, 256, 64): [(4, 3), (8, 3)],
        (128, 256, 64): [(8, 3), (8, 4)],
    }.items()
    for how in ways
]

KERNELS = ["forward", "back", "weights", "norm", "norm back"]


@dataclass(frozen=True)
class Case:
    """One kernel on one shape."""

    kernel: str
    shape: tuple[int, ...]
    clients: int

    def variants(self) -> list[Any]:
        """Return the variants to try; None is the current choice."""
        if self.kernel in ("norm", "norm back"):
            return [None, *itertools.product((2048, 4096, 8192, 16384), (4, 8, 16), (4, 8))]
        inputs, outputs = self.shape[:2]
        reach = (inputs, outputs) if self.kernel == "back" else (outputs, inputs)
        return [None, *(tile for tile in TILES if self._suits(tile, *reach))]

    def _suits(self, tile: Tile, columns: int, depth: int) -> bool:
        return tile.columns <= max(columns, 64) and (self.kernel == "weights" or tile.depth <= max(depth, 32))

    def alike(self) -> tuple[Any, ...]:
        """Return what decides which kernels are compiled; other sizes are arguments."""
        return self.kernel, *(self.shape if self.kernel.startswith("norm") else (self.shape[0] < FEW, *self.shape[2:4]))

    def calls(self) -> Iterator[tuple[Any, Callable[[], Any]]]:
        """Yield every variant with the call to time."""
        make = self._norm() if self.kernel.startswith("norm") else self._convolution()
        for variant in self.variants():
            yield variant, make(variant)

    def _convolution(self) -> Callable[[Tile | None], Callable[[], Any]]:
        inputs, outputs, kernel, stride, side = self.shape
        x, slope = _images(self.clients * inputs, side), _images(self.clients * outputs, side // stride)
        taps = torch.randn(self.clients, kernel, kernel, inputs, outputs, device="cuda", dtype=torch.bfloat16)
        gather, weight = triton_conv.gather_tile, triton_conv.weight_tile
        geometry = (stride, kernel // 2)

        def call() -> Any:
            if self.kernel == "forward":
                return triton_conv.gather_product(x, taps, slope, *geometry, transposed=False)
            if self.kernel == "back":
                return triton_conv.gather_product(slope, taps.transpose(3, 4), x, *geometry, transposed=True)
            return triton_conv.weight_product(x, slope, taps.shape, *geometry)

        def make(tile: Tile | None) -> Callable[[], Any]:
            def timed() -> Any:
                triton_conv.gather_tile = gather if tile is None else lambda *_: tile
                triton_conv.weight_tile = weight if tile is None else lambda *_: tile
                return call()

            return timed

        return make

    def _norm(self) -> Callable[[tuple[int, int, int] | None], Callable[[], Any]]:
        channels, side = self.shape
        x, shortcut = (_images(self.clients * channels, side).requires_grad_() for _ in range(2))
        weight, bias, mean, var = (torch.rand(self.clients, channels, device="cuda") for _ in range(4))
        running = (mean, var, torch.zeros(self.clients, dtype=torch.int64, device="cuda"))
        weight.requires_grad_()
        bias.requires_grad_()
        present = triton_norm.TILE, triton_norm.WARPS, triton_norm.PROGRAMS

        def make(variant: tuple[int, int, int] | None) -> Callable[[], Any]:
            def timed() -> Any:
                triton_norm.TILE, triton_norm.WARPS, triton_norm.PROGRAMS = variant or present
                out = triton_norm.StackedNorm.apply(x, weight, bias, shortcut, True, None, running, 0.1, 1e-5)
                return torch.autograd.grad(out, (x, weight, bias, shortcut), out) if self.kernel != "norm" else out

            return timed

        return make


def _images(channels: int, side: int) -> Tensor:
    shape = (BATCH, channels, side, side)
    return torch.randn(shape, device="cuda", dtype=torch.bfloat16).contiguous(memory_format=torch.channels_last)


def cases(clients: list[int], wanted: list[str]) -> list[Case]:
    """Return everything that is timed; the gradient of the images themselves is never needed."""
    shapes = {kernel: NORMS if kernel.startswith("norm") else LAYERS for kernel in wanted}
    found = [(kernel, shape) for kernel in wanted for shape in shapes[kernel] if kernel != "back" or shape[0] > 3]
    return [Case(kernel, shape, count) for count in clients for kernel, shape in found]


def compile_one(case: Case, number: int) -> None:
    """Run one variant once, so that it is compiled before it is timed."""
    _, call = next(itertools.islice(case.calls(), number, None))
    with suppress(triton.runtime.errors.OutOfResources):
        call()


def main() -> None:
    """Compile, time and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--clients", type=int, nargs="+", default=[15])
    parser.add_argument("--kernels", nargs="+", default=KERNELS, choices=KERNELS)
    parser.add_argument("--jobs", type=int, default=14, help="number of processes that compile")
    parser.add_argument("--best", type=int, default=4, help="number of fastest variants to show")
    asked = parser.parse_args()
    todo = cases(asked.clients, asked.kernels)
    first = {case.alike(): case for case in reversed(todo)}.values()
    pairs = [(case, number) for case in first for number in range(len(case.variants()))]
    with ProcessPoolExecutor(asked.jobs, mp_context=get_context("spawn")) as pool:
        list(pool.map(compile_one, *zip(*pairs, strict=True)))
    for case in todo:
        times: list[tuple[float, Any]] = []
        for variant, call in case.calls():
            try:
                times.append((1e3 * triton.testing.do_bench_cudagraph(call, rep=8, return_mode="median"), variant))
            except triton.runtime.errors.OutOfResources:
                continue
        present, *others = times
        shown = "; ".join(
            f"{spent:.0f} {variant}" for spent, variant in sorted(others, key=lambda one: one[0])[: asked.best]
        )
        print(f"{case.clients} clients, {case.kernel} {case.shape}: now {present[0]:.0f}; {shown}", flush=True)


if __name__ == "__main__":
    main()
