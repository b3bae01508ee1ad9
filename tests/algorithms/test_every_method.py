"""Every registered method end to end: BatchNorm, unusual clients, traffic, and refused options."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fedsat.algorithms import (
    Algorithm,
    DiscrepancyAware,
    Elastic,
    FedACG,
    FedAvgM,
    FedCM,
    FedDyn,
    FedLADA,
    FedLESAM,
    FedProx,
    FedSAM,
    LogitCalibration,
    Moon,
    NotTrueDistillation,
    RestrictedSoftmax,
    Scaffold,
    VacantClassDistillation,
    algorithms,
    footprint,
)
from fedsat.data import Federation
from fedsat.engine import SequentialEngine
from fedsat.errors import UsageError
from fedsat.models import build_model
from fedsat.rounds import LocalTraining, Sampling, run_round, start
from fedsat.tree import nbytes
from tests.support.byhand import after_rounds
from tests.support.federations import make_engine, tiny_dataset

METHODS = {name: algorithms.build(name) for name in algorithms} | {
    "scaffold I": Scaffold(controls="I"),
    "fedavgm plain": FedAvgM(nesterov=False),
}
every_method = pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
ROUNDS = 4
ONE_CLASS, ONE_SAMPLE = 0, 1
SEED = 8
"""A seed with which both unusual clients are sampled twice, some clients once and some never (checked below)."""


def awkward_engine(method: Algorithm) -> SequentialEngine:
    """Narrow ResNet-8 with BatchNorm on tiny images: a client of one class, one of one sample, ten of all classes."""
    dataset = tiny_dataset(96, (3, 8, 8), classes=3)
    labels = dataset.train.labels
    owners = np.arange(len(labels)) % 10 + 2
    owners[np.flatnonzero(labels == 0)[:9]] = ONE_CLASS
    owners[np.flatnonzero(labels == 2)[:1]] = ONE_SAMPLE
    offsets = np.concatenate([[0], np.cumsum(np.bincount(owners, minlength=12))])
    federation = Federation(dataset, np.argsort(owners, kind="stable").astype(np.int64), offsets.astype(np.int64))
    assert federation.class_counts[[ONE_CLASS, ONE_SAMPLE]].tolist() == [[9, 0, 0], [0, 0, 1]]
    module = build_model({"name": "resnet8", "width": 2}, (3, 8, 8), 3, seed=1)
    training = LocalTraining(epochs=2, batch_size=4, lr=0.05, augment=False, seed=SEED)
    return SequentialEngine(module, federation, method, training, torch.device("cpu"), torch.float32)


@every_method
def test_batchnorm_and_awkward_clients(method: Algorithm) -> None:
    engine = awkward_engine(method)
    training = start(engine)
    before = engine.test(training.server.model)
    calls: list[int] = []
    for _ in range(ROUNDS):
        calls += run_round(engine, training, Sampling(per_round=5, workers=2, seed=SEED)).clients.tolist()
    counts = np.bincount(calls, minlength=12)
    assert counts[ONE_CLASS] > 1
    assert counts[ONE_SAMPLE] > 1
    assert 1 in counts
    assert 0 in counts
    server = training.server
    # The model has changed, and it and all state are finite.
    assert engine.test(server.model).loss != before.loss
    trees = [server.model.params, server.model.buffers, *server.memory.values()]
    trees += [tree for state in training.states.values() for tree in state.values()]
    for tree in trees:
        assert all(bool(torch.isfinite(tensor).all()) for tensor in tree.values())
    # Only clients that took part have a state. States are parameters, except that MOON keeps the whole model.
    assert set(training.states) == set(calls)
    for state in (server.memory, *training.states.values()):
        for name, tree in state.items():
            if name == "previous_buffers":
                assert tree.keys() == server.model.buffers.keys()
            elif name not in ("objective", "signal"):
                assert tree.keys() == server.model.params.keys()
    # BatchNorm's counter is still an integer: the largest number of steps of a client.
    counter = server.model.buffers["stem.1.num_batches_tracked"]
    assert counter.dtype == torch.int64
    assert int(counter) > 0


@every_method
def test_measured_bytes_agree_with_the_footprint(method: Algorithm) -> None:
    engine = awkward_engine(method)
    training = start(engine)
    result = run_round(engine, training, Sampling(per_round=5, workers=1, seed=SEED))
    weights = training.server.model
    params, model = nbytes([weights.params]), nbytes([weights.params, weights.buffers])
    sizes, traffic = footprint(method), result.traffic
    counts = traffic.workers  # the only worker is the client itself: it downloads no model and only reports counts
    signal = nbytes([training.server.memory.get("signal", {})])  # two numbers of FedSat
    assert traffic.down == 5 * (model + (sizes.down - 1) * params + signal)
    stated = nbytes([method.weighting.statement(torch.from_numpy(engine.federation.class_counts[:5]))])
    assert traffic.up - counts == 5 * (model + (sizes.up - 1) * params) + stated
    assert nbytes(training.server.memory.values()) == len(sizes.server) * params + signal
    for state in training.states.values():
        assert len(sizes.client) * params == sum(
            nbytes([tree]) for name, tree in state.items() if name not in ("objective", "previous_buffers")
        )


@every_method
def test_every_method_learns(method: Algorithm) -> None:
    # Three clouds that overlap (few models exceed 0.93), five clients that hold all classes, a few rounds.
    engine = make_engine(method, partition="iid", lr=0.05)
    training = start(engine)
    for _ in range(6):
        run_round(engine, training, Sampling(per_round=3, workers=2, seed=3))
    assert engine.test(training.server.model).accuracy > 0.85


@every_method
def test_a_run_repeats_bit_for_bit(method: Algorithm) -> None:
    left, right = (after_rounds(method, rounds=2).params for _ in range(2))
    assert all(torch.equal(left[name], right[name]) for name in left)


@pytest.mark.parametrize(
    ("part", "options", "message"),
    [
        (FedProx, {"mu": -1}, "mu is -1; it must be at least 0"),
        (Moon, {"mu": -0.1}, "mu"),
        (Moon, {"temperature": 0}, "temperature is 0; it must be above 0"),
        (Scaffold, {"controls": "III"}, "controls"),
        (Scaffold, {"server_lr": 0}, "server_lr"),
        (LogitCalibration, {"tau": -1}, "tau"),
        (LogitCalibration, {"variant": "hard"}, "variant"),
        (FedAvgM, {"momentum": 1}, "momentum is 1; it must be below 1"),
        (FedAvgM, {"momentum": -0.1}, "momentum"),
        (FedLADA, {"alpha": 0}, "alpha"),
        (FedLADA, {"alpha": 1.1}, "alpha"),
        (FedLADA, {"beta1": 1}, "beta1"),
        (FedLADA, {"beta2": 1.5}, "beta2"),
        (FedLADA, {"epsilon": 0}, "epsilon"),
        (Elastic, {"tau": -1}, "tau"),
        (Elastic, {"mu": 1}, "mu"),
        (FedDyn, {"alpha": 0}, "alpha"),
        (FedCM, {"alpha": 0}, "alpha is 0; it must be above 0"),
        (FedACG, {"momentum": 1}, "momentum"),
        (FedSAM, {"rho": -1}, "rho is -1; it must be at least 0"),
        (FedLESAM, {"rho": -1}, "rho"),
        (NotTrueDistillation, {"tau": 0}, "tau"),
        (RestrictedSoftmax, {"alpha": 1.1}, "alpha"),
        (VacantClassDistillation, {"lam": -1}, "lam"),
        (DiscrepancyAware, {"a": -1}, "a is -1"),
        (FedDyn, {"server_lr": 0.5}, "server_lr is 0.5; it must be at least 1"),
    ],
)
def test_options_out_of_range_are_refused(part: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        part(**options)
