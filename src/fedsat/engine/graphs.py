"""Local steps as CUDA graphs: a step of a small network is hundreds of tiny kernels, captured once and replayed.

A graph reads and writes fixed memory. The lanes, the received model and the round's table of batches therefore have
their own buffers, a counter on the device selects the batch, and nothing waits for the host during a round. If the
learning rate changes between rounds, it is read from the device as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from fedsat.engine.base import BaseEngine
from fedsat.engine.groups import group_lanes
from fedsat.engine.kernels import compile_together
from fedsat.engine.lanes import Stretch
from fedsat.engine.plan import Lanes, Plan, RunPlan, StackedNetwork
from fedsat.engine.steps import advance
from fedsat.tree import State, Tree, tree_map, write

WIDTHS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
"""Numbers of lanes of a run with a graph. Other widths use the next larger one. The results of unused lanes are
discarded, which is cheaper than capturing a graph for every width."""


class GraphedSteps:
    """Replays one graph per width, for full or padded batches; graphs are reused in later rounds."""

    def __init__(self, engines: Sequence[BaseEngine], network: StackedNetwork) -> None:
        self._engines, self._network = engines, network
        self._device = engines[0].device
        self._graphs: dict[tuple[int, bool], torch.cuda.CUDAGraph] = {}
        self._lanes: Lanes | None = None
        self._plan: Plan | None = None
        self._pool = torch.cuda.graph_pool_handle()  # graphs never run at the same time, so they can share memory
        self._counter = torch.zeros(1, dtype=torch.int64, device=self._device)
        kind = next(iter(engines[0].initial_model.params.values())).dtype
        self._rates = torch.zeros(len(engines), dtype=kind, device=self._device)

    def load(self, plan: Plan) -> GraphedSteps:
        """Prepare a round; graphs of earlier rounds are reused if the round fits into their memory."""
        if self._plan is None or not _fits(plan, self._plan):
            self._forget()
            self._plan = _roomy(plan)
        for own, run in zip(self._plan.runs, plan.runs, strict=True):
            write(own.start.params, run.start.params)
            write(own.start.buffers, run.start.buffers)
            for name, tree in run.received.items():
                write(own.received[name], tree)
        steps, lanes = plan.table.shape[:2]
        self._plan.table[:steps, :lanes].copy_(plan.table)
        if plan.crops is not None and self._plan.crops is not None:
            self._plan.crops[:steps, :lanes].copy_(plan.crops)
        self._plan = replace(self._plan, partial=plan.partial)
        self._counter.zero_()
        for rate, run in zip(self._rates.unbind(), plan.runs, strict=True):
            rate.fill_(run.lr)
        return self

    def enter(self, newcomers: Lanes, places: list[int]) -> None:
        """Place clients in the given lanes."""
        if self._lanes is None:
            assert self._plan is not None
            self._lanes = _repeated(newcomers, self._plan.table.shape[1])
        self._lanes.put(places, newcomers)

    def take(self, stretch: Stretch) -> Lanes:
        """Replay the graphs of a stretch's steps."""
        assert self._lanes is not None
        assert self._plan is not None
        runs, most = len(self._plan.runs), self._plan.table.shape[1]
        width = min(size for size in (*(runs * size for size in WIDTHS), most) if size >= stretch.width)
        for step in range(stretch.begin, stretch.end):
            self._graph(width, bool(self._plan.partial[step, : stretch.width].any())).replay()
        return self._lanes.take(slice(0, stretch.width))

    def _forget(self) -> None:
        self._graphs, self._lanes, self._plan = {}, None, None
        self._pool = torch.cuda.graph_pool_handle()  # the pool is freed with the last of its graphs

    def _graph(self, width: int, padded: bool) -> torch.cuda.CUDAGraph:
        if (width, padded) not in self._graphs:
            self._graphs[width, padded] = self._record(width, padded)
        return self._graphs[width, padded]

    def _record(self, width: int, padded: bool) -> torch.cuda.CUDAGraph:
        """Capture one step of the first lanes after a few warm-up steps on a copy, as torch requires."""
        assert self._lanes is not None
        lanes = self._lanes.take(slice(0, width))
        side = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream(self._device))
        with (
            torch.random.fork_rng([self._device]),
            torch.cuda.stream(side),
        ):  # warm-up must not use random numbers
            compile_together(lambda: self._advance(_repeated(lanes, width), width, padded))
            for _ in range(3):
                self._advance(_repeated(lanes, width), width, padded)
        torch.cuda.current_stream(self._device).wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            self._step(lanes, width, padded)
        return graph

    def _step(self, lanes: Lanes, width: int, padded: bool) -> None:
        """Take one step within the fixed memory; this is what a graph repeats."""
        after = Lanes.of(lanes.trees())
        self._advance(after, width, padded)
        hand_over(lanes.trees(), after.trees())
        self._counter.add_(1)

    def _advance(self, lanes: Lanes, width: int, padded: bool) -> None:
        assert self._plan is not None
        plan = self._plan
        rows = plan.table[:, :width].index_select(0, self._counter)[0]
        crops = None if plan.crops is None else plan.crops[:, :width].index_select(0, self._counter)[0]
        runs = [self._rated(run, rate) for run, rate in zip(plan.runs, self._rates.unbind(), strict=True)]
        advance(group_lanes(runs, self._network, lanes), self._network, lanes, plan.batch(rows, crops), padded)

    def _rated(self, run: RunPlan, rate: Tensor) -> RunPlan:
        return run if run.engine.training.lr_schedule.constant else replace(run, lr=rate)


def _fits(plan: Plan, room: Plan) -> bool:
    (steps, lanes, width), (most_steps, most_lanes, same_width) = plan.table.shape, room.table.shape
    return steps <= most_steps and lanes <= most_lanes and width == same_width


def _roomy(plan: Plan) -> Plan:
    """Return buffers for the plan's tensors, with room for rounds that are 50 % longer."""
    steps = plan.table.shape[0] + plan.table.shape[0] // 2

    def longer(tensor: Tensor) -> Tensor:
        return torch.zeros(steps, *tensor.shape[1:], dtype=tensor.dtype, device=tensor.device)

    def own(tree: Tree) -> Tree:
        return tree_map(in_tap_order, tree)

    def kept(run: RunPlan) -> RunPlan:
        start = replace(run.start, params=own(run.start.params), buffers=own(run.start.buffers))
        return replace(run, start=start, received={name: own(tree) for name, tree in run.received.items()})

    crops = None if plan.crops is None else longer(plan.crops)
    return Plan(tuple(map(kept, plan.runs)), longer(plan.table), crops, plan.partial)


def _repeated(lanes: Lanes, count: int) -> Lanes:
    """Return `count` lanes in new memory, made by repeating the given ones."""
    copies = lanes.take([place % len(lanes.class_counts) for place in range(count)])
    return Lanes.of({name: tree_map(in_tap_order, tree) for name, tree in copies.trees().items()})


def in_tap_order(tensor: Tensor) -> Tensor:
    """Return a copy whose convolution weights, [S, out, in, k, k] or without S, have the layout [S, k, k, in, out].

    The kernels read weights and write gradients in this layout. With the same layout for all operands, torch updates
    and casts weights in one contiguous pass.
    """
    if tensor.dim() not in (4, 5):
        return tensor.clone()
    *lead, out, into, down, right = range(tensor.dim())
    turned = tensor.permute(*lead, down, right, into, out).contiguous()
    return turned.permute(*lead, -1 + tensor.dim(), -2 + tensor.dim(), len(lead), len(lead) + 1)


def hand_over(into: State, trees: State) -> None:
    """Overwrite the lanes with their values after a step.

    A method may return a tensor of the carry under a different name. Such tensors are copied first, so that none is
    overwritten before it is read.
    """
    old = {tensor.data_ptr() for tree in into.values() for tensor in tree.values()}

    def apart(tensor: Tensor, own: Tensor) -> Tensor:
        return tensor.clone() if tensor.data_ptr() in old and tensor.data_ptr() != own.data_ptr() else tensor

    staged = {name: tree_map(apart, tree, into[name]) for name, tree in trees.items()}
    for name, tree in staged.items():
        moved = {key: tensor for key, tensor in tree.items() if tensor.data_ptr() != into[name][key].data_ptr()}
        write({key: into[name][key] for key in moved}, moved)
