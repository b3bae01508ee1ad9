"""How many CPU threads train the clients of a round."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median

import torch
from torch import nn

BLOCK, BLOCKS = 5, 3
"""Steps before the number of threads changes, and blocks of such steps for each number, until one is chosen."""

_NORMS = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm)
"""Layers whose sums torch splits among threads, so that the last bits depend on how many there are."""


class ThreadChoice:
    """Chooses between one thread and all threads that torch has, by timing the first steps of a run.

    Operations of small networks take microseconds. Threads then wait for each other longer than they work, above all if
    other programs need the cores. The two numbers take turns, block by block, so that both are timed under the same
    load.

    Runs must be repeatable, so there is a choice only if the number does not affect the result.
    """

    def __init__(self, module: nn.Module, clock: Callable[[], float] = time.perf_counter) -> None:
        self._free = not any(isinstance(layer, _NORMS) for layer in module.modules())
        self._clock = clock
        self._taken = 0
        self._seconds: dict[int, list[float]] = {}
        self.chosen: int | None = None

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Use the chosen number, if there is one already, and restore torch's number at the end."""
        available = torch.get_num_threads()
        if self.chosen is None and not self._seconds:
            self._seconds = {available: [], 1: []}
            self.chosen = available if available == 1 or not self._free else None
        if self.chosen is not None and self.chosen != available:
            torch.set_num_threads(self.chosen)
        try:
            yield
        finally:
            torch.set_num_threads(available)

    def take(self, step: Callable[[], None]) -> None:
        """Take a step, and time it while nothing is chosen yet."""
        if self.chosen is not None:
            step()
            return
        block, place = divmod(self._taken, BLOCK)
        threads = list(self._seconds)[block % 2]
        if place == 0:
            torch.set_num_threads(threads)
        begin = self._clock()
        step()
        if place > 0:  # the first step of a block includes the cost of the change
            self._seconds[threads].append(self._clock() - begin)
        self._taken += 1
        if self._taken == 2 * BLOCK * BLOCKS:
            self.chosen = min(self._seconds, key=lambda number: median(self._seconds[number]))
            torch.set_num_threads(self.chosen)
