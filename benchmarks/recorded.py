"""The gain on a CPU from recording steps as a graph of plain operations, and from compiling that graph.

    OMP_NUM_THREADS=1 python benchmarks/recorded.py W2 fedavg --compiled

Rounds of the unchanged stacked engine, with steps recorded by `make_fx`, and with these compiled by inductor (which
needs a C++ compiler) take turns in one process. The output is the minimum and the median of a round's CPU seconds,
which other programs on the machine affect less than wall time. Recording and compiling happen in a first round that
does not count. docs/measurements/engine.md explains why the engine does not record steps.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from engines import SAMPLING, WORKLOADS, OurEngine, dataset
from local import CLIENTS
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from fedsat.algorithms import Model
from fedsat.data import Federation
from fedsat.engine.groups import group_lanes
from fedsat.engine.lanes import Stretch
from fedsat.engine.plan import Lanes
from fedsat.engine.steps import EagerSteps, advance
from fedsat.tree import State

aten: Any = torch.ops.aten


def flat(trees: State) -> list[Tensor]:
    """Return all tensors, in order."""
    return [tensor for tree in trees.values() for tensor in tree.values()]


def filled(like: State, tensors: list[Tensor]) -> State:
    """Invert `flat`."""
    each = iter(tensors)
    return {name: {key: next(each) for key in tree} for name, tree in like.items()}


class RecordedSteps(EagerSteps):
    """Takes steps by replaying a recording, one for each width and for full or padded batches."""

    recordings: dict[tuple[int, bool], Callable[..., list[Tensor]]]
    compiled = False

    def take(self, stretch: Stretch) -> Lanes:
        """Take the same steps as the eager class, without augmentation."""
        assert self._lanes is not None
        plan, width = self._plan, stretch.width
        lanes = self._lanes.take(slice(0, width))
        (run,) = plan.runs
        given = {"params": run.start.params, "buffers": run.start.buffers, **run.received}
        for step in range(stretch.begin, stretch.end):
            kind = width, bool(plan.partial[step, :width].any())
            trees, rows = lanes.trees(), plan.table[step, :width]
            if kind not in self.recordings:
                self.recordings[kind] = self._record(trees, given, rows, kind[1])
            with torch.no_grad():
                lanes = Lanes.of(filled(trees, self.recordings[kind](flat(trees), flat(given), rows)))
        self._lanes = lanes
        return lanes

    def _record(self, trees: State, given: State, rows: Tensor, padded: bool) -> Callable[..., list[Tensor]]:
        def one_step(changing: list[Tensor], constant: list[Tensor], batch_rows: Tensor) -> list[Tensor]:
            received, lanes = filled(given, constant), Lanes.of(filled(trees, changing))
            start = Model(received.pop("params"), received.pop("buffers"))
            runs = [replace(run, start=start, received=received) for run in self._plan.runs]
            groups = group_lanes(runs, self._network, lanes)
            advance(groups, self._network, lanes, self._plan.batch(batch_rows, None), padded)
            return flat(lanes.trees())

        copies = [tensor.clone() for tensor in flat(trees)]  # recording takes the step
        recording = make_fx(one_step)(copies, flat(given), rows)
        for node in list(recording.graph.nodes):
            if node.target is aten.detach.default:  # the identity, because no gradients are tracked
                node.replace_all_uses_with(node.args[0])
                recording.graph.erase_node(node)
            if (
                self.compiled and node.target is aten.view.default
            ):  # inductor uses a different memory layout for some tensors
                node.target = aten.reshape.default
        recording.recompile()
        return torch.compile(recording, fullgraph=True, dynamic=False) if self.compiled else recording


class CompiledSteps(RecordedSteps):
    """Takes steps by replaying compiled recordings."""

    compiled = True


def contender(workload: str, method: str, steps: type[EagerSteps]) -> OurEngine:
    """The stacked engine with another way to take steps."""
    load = WORKLOADS[workload]
    federation = Federation.build(dataset(load), load.partition, CLIENTS, 0)
    threads = torch.get_num_threads()
    how = torch.device("cpu"), "float32", SAMPLING, threads, "off"  # graphs have torch's operations only
    ours = OurEngine("stacked", load, federation, method, *how)
    if issubclass(steps, RecordedSteps):
        steps.recordings = {}
    engine: Any = ours._engine
    engine.alone.steps = lambda plan: steps(engine.stacked, plan, engine.threads)
    return ours


def main() -> None:
    """Measure and show."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("workload", choices=list(WORKLOADS))
    parser.add_argument("method", nargs="?", default="fedavg")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--compiled", action="store_true")
    asked = parser.parse_args()
    kinds: dict[str, type[EagerSteps]] = {"unchanged": EagerSteps, "recorded": RecordedSteps}
    if asked.compiled:
        kinds["compiled"] = CompiledSteps
    contenders = {name: contender(asked.workload, asked.method, steps) for name, steps in kinds.items()}
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(asked.rounds + 1):
        for name, each in contenders.items():
            began = time.process_time()
            clock = each.run_round()
            if turn:
                times[name].append(time.process_time() - began)
            else:
                print(f"first round {name}: {clock:.1f} s", flush=True)
    for name, each in contenders.items():
        print(
            f"{asked.workload} {asked.method} {name}: CPU seconds per round, minimum {min(times[name]):.3f}, "
            f"median {np.median(times[name]):.3f}; test loss {each.test_loss():.6f}"
        )


if __name__ == "__main__":
    main()
