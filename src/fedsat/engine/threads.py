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

WINDOW, CHANGE = 200, 2.0
"""A new trial follows when the median step of a window takes this many times as long, or as short, as in the last."""

_NORMS = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm)
"""Layers whose sums torch splits among threads, so that the last bits depend on how many there are."""


class ThreadChoice:
    """Chooses between one thread and all threads that torch has, by timing steps.

    Operations of small networks take microseconds. Threads then wait for each other longer than they work, especially
    if other programs use the cores. A trial alternates between the two numbers, block by block, so that both are timed
    under the same load. If the pace changes later, because other programs start or end, there is another trial.

    Runs must be repeatable, so there is a choice only if the number of threads does not affect the result.
    """

    def __init__(self, module: nn.Module, clock: Callable[[], float] = time.perf_counter) -> None:
        self._free = not any(isinstance(layer, _NORMS) for layer in module.modules())
        self._clock = clock
        self._taken = 0
        self._trial: dict[int, list[float]] = {}
        self._pace: float | None = None
        """Seconds of a step for each lane with the chosen number, as the trial found them."""
        self._window: list[float] = []
        self.chosen: int | None = None

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Use the chosen number, if there is one already, and restore torch's number at the end."""
        available = torch.get_num_threads()
        if self.chosen is None and not self._trial:
            self._trial = {available: [], 1: []}
            self.chosen = available if available == 1 or not self._free else None
        if self.chosen is not None and self.chosen != available:
            torch.set_num_threads(self.chosen)
        try:
            yield
        finally:
            torch.set_num_threads(available)

    def take(self, step: Callable[[], None], lanes: int = 1) -> None:
        """Take a step of this many lanes, and time it unless the number of threads is fixed."""
        if self.chosen is not None and self._pace is None:
            step()
            return
        if self.chosen is None and torch.get_num_threads() != self._tried:
            torch.set_num_threads(self._tried)
        begin = self._clock()
        step()
        seconds = (self._clock() - begin) / lanes
        if self.chosen is None or self._pace is None:
            self._compare(seconds)
        else:
            self._watch(seconds, self._pace)

    @property
    def _tried(self) -> int:
        """The number of threads of this block of the trial."""
        return list(self._trial)[self._taken // BLOCK % 2]

    def _compare(self, seconds: float) -> None:
        """Note a step of the trial; after the last, keep the faster number."""
        if self._taken % BLOCK > 0:  # the first step of a block includes the cost of the change
            self._trial[self._tried].append(seconds)
        self._taken += 1
        if self._taken == 2 * BLOCK * BLOCKS:
            medians = {number: median(found) for number, found in self._trial.items()}
            self.chosen = min(medians, key=medians.__getitem__)
            self._pace = medians[self.chosen]
            torch.set_num_threads(self.chosen)

    def _watch(self, seconds: float, usual: float) -> None:
        """Begin another trial if a window of steps was much slower or faster than the last trial."""
        self._window.append(seconds)
        if len(self._window) < WINDOW:
            return
        change, self._window = median(self._window) / usual, []
        if not 1 / CHANGE < change < CHANGE:
            self.chosen, self._taken = None, 0
            self._trial = {number: [] for number in self._trial}
