"""Local steps of many clients at once."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from typing import Protocol

import torch
from torch import Tensor

from fedsat.algorithms import Batch
from fedsat.algorithms.base import gradient
from fedsat.engine.groups import Group, group_lanes
from fedsat.engine.kernels import triton_module
from fedsat.engine.lanes import Stretch
from fedsat.engine.network import Descent, Factors, Parts
from fedsat.engine.plan import Lanes, Plan, StackedNetwork, interleave, interleaved
from fedsat.engine.threads import ThreadChoice
from fedsat.rounds.local import meter
from fedsat.tree import State, Tree, add, add_in_place, tree_map, zeros_like


class Steps(Protocol):
    """Takes the steps of a round, eagerly or with CUDA graphs."""

    def enter(self, newcomers: Lanes, places: list[int]) -> None:
        """Place clients in the given lanes."""

    def take(self, stretch: Stretch) -> Lanes:
        """Take the steps of a stretch and return the lanes afterwards."""


class EagerSteps:
    """Takes each step operation by operation."""

    def __init__(self, network: StackedNetwork, plan: Plan, threads: ThreadChoice) -> None:
        self._network, self._plan, self._threads = network, plan, threads
        self._lanes: Lanes | None = None

    def enter(self, newcomers: Lanes, places: list[int]) -> None:
        """Place clients in the given lanes; the first clients open all of them."""
        if self._lanes is None:
            self._lanes = newcomers.spread(places, self._plan.table.shape[1])
        else:
            self._lanes.put(places, newcomers)

    def take(self, stretch: Stretch) -> Lanes:
        """Take the steps of a stretch and drop the lanes that have closed."""
        if self._lanes is None:
            raise AssertionError("no client has entered")
        plan, width = self._plan, stretch.width
        self._lanes = lanes = self._lanes.take(slice(0, width))
        groups = group_lanes(plan.runs, self._network, lanes)
        for step in range(stretch.begin, stretch.end):
            batch = plan.batch(plan.table[step, :width], None if plan.crops is None else plan.crops[step, :width])
            padded = bool(plan.partial[step, :width].any())
            self._threads.take(partial(advance, groups, self._network, lanes, batch, padded), width)
        return lanes


def advance(groups: Sequence[Group], network: StackedNetwork, lanes: Lanes, batch: Batch, padded: bool) -> None:
    """Take one step in all lanes: the stacked counterpart of the sequential engine's inner loop."""

    def costs_at(point: Tree, buffers: Tree, factors: list[Descent] | None) -> tuple[Tree, Tensor, Tree]:
        leaves = {name: tensor.detach().requires_grad_() for name, tensor in point.items()}
        outputs = network.train(leaves, buffers, batch.x, batch.real if padded else None, factors)
        each = [group.losses(lanes, outputs, batch) for group in groups]
        losses, after = interleaved([own for own, _ in each]), interleave([costs for _, costs in each])
        means = torch.where(batch.real, losses, 0).sum(1) / batch.real.sum(1) if padded else losses.mean(1)
        return leaves, means, after

    @cache
    @torch.enable_grad()
    def gradient_at_params() -> Tree:
        leaves, means, _ = costs_at(lanes.params, tree_map(torch.clone, lanes.buffers), None)
        return gradient(means, leaves)

    def gradient_of(group: Group) -> Tree:
        return group.own(gradient_at_params())

    with torch.no_grad():
        offsets = [
            group.algorithm.perturbation(
                group.task, group.carry(lanes.carry), group.own(lanes.params), partial(gradient_of, group)
            )
            for group in groups
        ]
    moved, point = any(offset is not None for offset in offsets), lanes.params
    if moved:
        own = [
            zeros_like(group.own(point)) if tree is None else tree for group, tree in zip(groups, offsets, strict=True)
        ]
        point = add(point, interleave(own))
    factors: list[Descent] | None = [] if not moved and all(group.direct for group in groups) else None
    leaves, means, lanes.costs = costs_at(point, lanes.buffers, factors)
    if factors is None:
        grads = gradient(means, leaves)
        with torch.no_grad():
            stepped = [group.step(lanes, grads) for group in groups]
            lanes.params = interleave([params for params, _, _ in stepped])
            changed = set[str]().union(*(names for _, _, names in stepped))
            lanes.carry = {
                name: interleave([carry[name] for _, carry, _ in stepped]) if name in changed else tree
                for name, tree in lanes.carry.items()
            }
    else:
        descend_in_place(groups, lanes.carry, leaves, means, factors)
    lanes.meters = meter(lanes.meters, means.detach())


def descend_in_place(
    groups: Sequence[Group], carry: State, params: Tree, costs: Tensor, factors: Sequence[Descent]
) -> None:
    """Apply θ ← θ − η (∇L + pull) in place, where L are the clients' costs [C].

    Gradients given as factors are multiplied and added to the weights in one operation. On a CPU, storing the gradient
    first would cost as much time as the product itself; a compiled network takes the whole step. On a GPU, the parts of
    a convolution's gradient and the pull are added to the weights in one pass.
    """
    grads = torch.autograd.grad(costs.sum(), list(params.values()), allow_unused=True)
    formed = {name: grad for name, grad in zip(params, grads, strict=True) if grad is not None}
    names = {tensor.data_ptr(): name for name, tensor in params.items()}
    parts = [(names[given.weight.data_ptr()], given.parts) for given in factors if isinstance(given, Parts)]
    apart = {name for name, _ in parts}
    with torch.no_grad():
        for group in groups:
            own, lr = group.own(params), group.task.lr
            pull = group.algorithm.pull(group.task, group.carry(carry), own)
            if factors and not isinstance(factors[0], Factors | Parts):
                factors[0].take(group.place, float(lr), pull)
                continue
            whole = [name for name in own if name not in apart]
            if pull is not None and whole:
                add_in_place([own[name] for name in whole], [pull[name] for name in whole], -lr)
            late = {} if pull is None else {name: pull[name] for name in apart}
            if formed:
                add_in_place([own[name] for name in formed], list(group.own(formed).values()), -lr)
            for name, each in parts:  # a weight that is used twice has two gradients, but one pull
                descend_by_parts(own[name], each[:, group.place], late.pop(name, None), lr)
            for product in factors:
                if isinstance(product, Factors):
                    rows = product.columns[group.place].transpose(1, 2)
                    product.weight[group.place].baddbmm_(product.slope[group.place], rows, alpha=-float(lr))


def descend_by_parts(weight: Tensor, parts: Tensor, pull: Tensor | None, lr: float | Tensor) -> None:
    """Apply θ ← θ − η (Σ parts + pull) in place to the weights of a convolution (see `network.Parts`)."""
    kernels = triton_module("triton_descend") if weight.is_cuda else None
    if kernels is not None:
        kernels.descend(weight, parts, pull, lr)
        return
    slope = parts.sum(0).permute(0, 4, 3, 1, 2)
    weight.sub_(lr * (slope if pull is None else slope + pull))
