"""A stack: the clients of one or several runs, trained at once.

Runs whose tensors have the same shapes (seeds, settings of a method, learning rates, partitions) can train together.
Where launching operations takes more time than the arithmetic, a step of all runs costs little more than a step of one.
Each run gets the same numbers as when it trains alone: its clients have their own lanes (see `lanes`), and its method's
functions see only these (see `groups.Group`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from fedsat.engine.base import sent, tuned_kernels
from fedsat.engine.graphs import GraphedSteps
from fedsat.engine.lanes import Seat, lane_table, seat_runs, stretches
from fedsat.engine.local_round import LocalRound
from fedsat.engine.plan import Lanes, Plan
from fedsat.engine.steps import EagerSteps, Steps
from fedsat.rounds.local import Request, TrainedRound
from fedsat.rounds.round import timed
from fedsat.seeding import generator

if TYPE_CHECKING:
    from fedsat.engine.stacked import StackedEngine

logger = logging.getLogger(__name__)


class Stack:
    """Trains the runs of these engines together, one round of each run at a time."""

    def __init__(self, engines: Sequence[StackedEngine]) -> None:
        first, *others = self.engines = list(engines)
        for engine in others:
            engine.share_examples(first)
            engine.threads = first.threads
        self.device, self.network = first.device, first.stacked
        self._graphed = self._new_graphs()

    def _new_graphs(self) -> GraphedSteps | None:
        return GraphedSteps(self.engines, self.network) if self.device.type == "cuda" else None

    @property
    def lanes(self) -> int:
        """The largest number of lanes of each run."""
        return max(1, min(engine.lanes for engine in self.engines) // len(self.engines))

    def train(self, requests: Sequence[Request]) -> list[TrainedRound]:
        """Train a round of every run. If the GPU runs out of memory, halve the lanes and begin again."""
        generators = [] if self.device.type == "cpu" else [self.device]
        with torch.random.fork_rng(devices=generators), self.engines[0].threads.applied():
            while True:
                # Only dropout in user models uses torch's global generator, which is restored afterwards.
                seed, number = self.engines[0].training.seed, requests[0].number
                torch.manual_seed(int(generator(seed, "dropout", number).integers(2**62)))
                try:
                    with tuned_kernels():
                        return self._train_round(requests)
                except torch.cuda.OutOfMemoryError:
                    lanes = min(self.lanes, max(len(request.clients) for request in requests))
                    if lanes == 1 or self._graphed is None:
                        raise
                    for engine in self.engines:
                        engine.lanes = lanes // 2 * len(self.engines)
                    self._graphed = self._new_graphs()
                torch.cuda.empty_cache()
                logger.warning("round %d: out of GPU memory with %d lanes; retrying with %d", number, lanes, self.lanes)

    def train_ahead(self, requests: Sequence[Request]) -> None:
        """Train a round of every run. Its engine keeps the result until the round asks for it."""
        seconds: dict[str, float] = {}
        with timed(seconds, "train", self.device):
            trained = self.train(requests)
        share = seconds["train"] / len(requests)
        for engine, request, one in zip(self.engines, requests, trained, strict=True):
            engine.ahead = request, replace(one, seconds=share)

    def steps(self, plan: Plan) -> Steps:
        """Return the object that takes the steps of a round: with CUDA graphs on a GPU, eagerly on a CPU."""
        if self._graphed is None:
            return EagerSteps(self.network, plan, self.engines[0].threads)
        return self._graphed.load(plan)

    def _train_round(self, requests: Sequence[Request]) -> list[TrainedRound]:
        """Run all stretches and collect the clients' results by run."""
        rounds = [
            LocalRound(engine, self.network, request) for engine, request in zip(self.engines, requests, strict=True)
        ]
        seats = seat_runs([each.steps for each in rounds], self.lanes)
        steps, runs = self.steps(self._plan(rounds, seats)), len(rounds)
        firsts = np.cumsum([0, *(len(each.steps) for each in rounds)]).tolist()
        found: list[list[TrainedRound]] = [[] for _ in rounds]
        order: list[list[int]] = [[] for _ in rounds]
        for stretch in stretches(seats, runs):
            if stretch.entering:
                entering = sorted(stretch.entering, key=lambda seat: seat.lane % runs)
                newcomers = Lanes.join(
                    rounds[run].begin([seat.client - firsts[run] for seat in own])
                    for run, own in _by_run(entering, runs)
                )
                steps.enter(newcomers, [seat.lane for seat in entering])
            lanes = steps.take(stretch)
            for run, own in _by_run(stretch.leaving, runs):
                places = [seat.client - firsts[run] for seat in own]
                found[run].append(rounds[run].end(lanes.take([seat.lane for seat in own]), places))
                order[run] += places
        return [
            TrainedRound.of(parts).take(np.argsort(places).tolist()) for parts, places in zip(found, order, strict=True)
        ]

    def _plan(self, rounds: Sequence[LocalRound], seats: Sequence[Seat]) -> Plan:
        rows, runs = [own for each in rounds for own in each.rows], len(rounds)
        crops = [own for each in rounds for own in each.crops]
        padded = [np.any(own < 0, axis=1, keepdims=True) for own in rows]
        return Plan(
            runs=tuple(each.plan for each in rounds),
            table=sent(lane_table(seats, rows, -1, runs), self.device),
            crops=sent(lane_table(seats, crops, 0, runs), self.device) if crops else None,
            partial=lane_table(seats, padded, 0, runs)[..., 0],
        )


def _by_run(seats: Iterable[Seat], runs: int) -> list[tuple[int, list[Seat]]]:
    """Return the seats by run, for the runs that have any."""
    each = [(run, [seat for seat in seats if seat.lane % runs == run]) for run in range(runs)]
    return [(run, own) for run, own in each if own]
