"""The time of each phase of a round in milliseconds, and on a GPU that of its kernels.

    python benchmarks/phases.py W3 fedavg fedsat --precision bf16 --kernels 20

The times are medians over rounds of the stacked engine, after three warm-up rounds. If clients differ in size, so do
rounds. The training time is therefore also given per sample, over all these rounds. The first round includes the time
to compile kernels, unless they are in Triton's cache (`TRITON_CACHE_DIR`) or an earlier method used them.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from dataclasses import replace

import numpy as np
import torch
from engines import CLIENTS, SAMPLING, TRAINING, WORKLOADS, dataset
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from fedsat.algorithms import algorithms
from fedsat.data import Federation
from fedsat.engine import make_engine
from fedsat.models import build_model
from fedsat.rounds import Engine, FederationState, Sampling, run_round, start, timed


def timed_round(
    engine: Engine, training: FederationState, sampling: Sampling, federation: Federation
) -> tuple[dict[str, float], int]:
    """Run a round and a test; return the seconds by phase and the number of samples in all local epochs."""
    finished = run_round(engine, training, sampling)
    with timed(finished.seconds, "evaluate", engine.device):
        engine.evaluate([training.server.model], "expected")
    held = sum(len(federation.indices(client)) for client in finished.clients.tolist())
    return finished.seconds, held * TRAINING.epochs


def kernels(engine: Engine, training: FederationState, sampling: Sampling, most: int) -> list[str]:
    """Return the kernels that take most of a round's time: milliseconds, number, name."""
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        run_round(engine, training, sampling)
    times, counts = Counter[str](), Counter[str]()
    for event in profiled.events():
        if event.device_type == DeviceType.CUDA:
            times[event.name] += event.device_time / 1e3
            counts[event.name] += 1
    total = f"{sum(times.values()):8.1f} ms {sum(counts.values()):6d}  all kernels"
    return [total, *(f"{spent:8.1f} ms {counts[name]:6d}  {name[:90]}" for name, spent in times.most_common(most))]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workload", choices=list(WORKLOADS))
    parser.add_argument("methods", nargs="*", default=["fedavg", "fedsat"])
    parser.add_argument("--precision", choices=["float32", "bf16"], default="float32")
    parser.add_argument("--clients", type=int, default=SAMPLING.per_round, help="clients sampled per round")
    parser.add_argument("--workers", type=int, default=SAMPLING.workers)
    parser.add_argument("--worker-samples", type=int, default=0, help="samples on which a worker evaluates; 0: all")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--kernels", type=int, default=0, help="number of GPU kernels to list")
    asked = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    load, sampling = WORKLOADS[asked.workload], Sampling(asked.clients, asked.workers, SAMPLING.seed)
    whole = Federation.build(dataset(load), load.partition, CLIENTS, 0)
    federation = replace(whole, worker_samples=asked.worker_samples)
    for method in asked.methods:
        module = build_model(load.model, federation.dataset.input_shape, 10, 0)
        engine, _ = make_engine(
            "stacked", module, federation, algorithms.build(method), TRAINING, device, asked.precision
        )
        training = start(engine)
        begin = time.perf_counter()
        timed_round(engine, training, sampling, federation)
        first = time.perf_counter() - begin
        rounds = [timed_round(engine, training, sampling, federation) for _ in range(2 + asked.rounds)][2:]
        phases = {name: 1e3 * float(np.median([seconds[name] for seconds, _ in rounds])) for name in rounds[0][0]}
        a_sample = 1e6 * sum(seconds["train"] for seconds, _ in rounds) / sum(samples for _, samples in rounds)
        print(f"{asked.workload} {method} {asked.precision} on {device.type}, ms:", end=" ")
        print(
            ", ".join(f"{name} {spent:.1f}" for name, spent in phases.items()),
            f"sum {sum(phases.values()):.1f}",
            end="",
        )
        print(f"; training takes {a_sample:.1f} µs per sample, the first round {first:.1f} s")
        if asked.kernels and device.type == "cuda":
            print("\n".join(kernels(engine, training, sampling, asked.kernels)))


if __name__ == "__main__":
    main()
