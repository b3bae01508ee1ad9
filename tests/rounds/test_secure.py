"""Secure aggregation in simulations: the same as plain aggregation, with dropouts, and what it refuses."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch

import fedsat
from fedsat.algorithms import Algorithm, Model, Updates, algorithms
from fedsat.algorithms.fedsat import FedSat
from fedsat.algorithms.pwa import PrioritizedClassWeights
from fedsat.errors import SkippedRoundError, TrainingError, UsageError
from fedsat.experiment.config import Config
from fedsat.metrics import ClassCounts
from fedsat.rounds import FederationState, Protection, run_round
from fedsat.rounds.attacks import Attack
from fedsat.rounds.round import NO_FAULTS, Faults, start, weigh_alone
from fedsat.rounds.secure import (
    enough,
    keys_down,
    keys_up,
    model_of,
    secure_mean,
    too_large,
    vector,
    why_not,
    with_scale,
    without_scales,
)
from fedsat.secure.fixed import decode
from fedsat.seeding import Indices
from fedsat.tree import per_client
from tests.support.federations import SAMPLING, furthest, make_engine, stacked

PLAIN = ("fedavg", "fedprox", "fedavgm", "feddyn", "fedlc", "fedsam", "fedntd", "moon", "fedacg")


def trained(method: str, *, secure: bool, faults: Faults = NO_FAULTS, rounds: int = 3, **options: Any) -> Any:
    local = {"secure_aggregation": secure}
    options = {"partition": "quantity", **options}
    engine = make_engine(algorithms.build(method), clients=8, local=local, **options)
    training: FederationState = start(engine)
    return training, [run_round(engine, training, SAMPLING, faults) for _ in range(rounds)]


def test_the_sum_by_hand() -> None:
    """Scales 1 and 3: the mean of 2 and 6 is (1·2 + 3·6)/4 = 5."""
    start_ = Model({"a": torch.tensor([1.0])}, {"steps": torch.tensor(10)})
    words = [
        vector(start_, Model({"a": torch.tensor([1.0 + moved])}, {"steps": torch.tensor(10 + steps)}), scale)
        for moved, steps, scale in ((2.0, 4, 1.0), (6.0, 8, 3.0))
    ]
    assert decode(words[1]).tolist() == [18.0, 24.0]
    found = model_of(start_, words[0] + words[1], 4.0)
    assert found.params["a"].tolist() == [6.0]
    assert found.buffers["steps"].item() == 17


@pytest.mark.parametrize("method", PLAIN)
def test_it_equals_plain_aggregation_within_rounding(method: str) -> None:
    (plain, _), (secure, results) = (trained(method, secure=how) for how in (False, True))
    assert furthest(plain.server.model.params, secure.server.model.params) < 1e-7
    assert furthest(plain.server.model.params, start_of(method)) > 1e-3
    assert all(len(result.losses) == 0 for result in results)  # losses are not part of the sum


def start_of(method: str) -> Any:
    return make_engine(algorithms.build(method), clients=8).initial_model.params


def test_the_stacked_engine_and_parts_of_fedsat() -> None:
    method: Any = {"name": "fedsat", "weighting": "samples"}
    alike = {"name": "quantity", "beta": 10.0}  # so that no update is longer than FedSat's limits, which need each one
    (plain, _), (secure, _) = (trained(method, secure=how, engine=stacked, partition=alike) for how in (False, True))
    assert furthest(plain.server.model.params, secure.server.model.params) < 1e-7


def test_batchnorm_and_differential_privacy() -> None:
    options: dict[str, Any] = {"dataset": "mnist-mini", "clients": 6, "per_round": 4, "rounds": 2, "epochs": 1,
                               "classes_per_client": 3, "batch_size": 200}  # fmt: skip
    for further in (
        {"model": {"name": "resnet8", "width": 2}, "algorithm": "fedavg"},
        {"hidden": [8], "algorithm": {"name": "fedavg", "weighting": "uniform"}, "privacy": "central"},
        {"hidden": [8], "algorithm": "fedavg", "privacy": {"name": "local", "dp_noise": 0.1}},
    ):
        runs = [fedsat.run(**options, **further, secure_aggregation=how) for how in (False, True)]
        assert furthest(runs[0].model.params, runs[1].model.params) < 1e-5
        floats = [
            {name: tensor for name, tensor in run.model.buffers.items() if tensor.is_floating_point()} for run in runs
        ]
        assert furthest(*floats) < 1e-5


def test_a_round_without_two_thirds_of_its_clients_is_skipped() -> None:
    assert [enough(4, responded) for responded in (2, 3, 4)] == [False, True, True]
    assert not enough(2, 2)
    _, results = trained("fedavg", secure=True, faults=Faults(dropout=0.3), rounds=12)
    _, others = trained("fedavg", secure=False, faults=Faults(dropout=0.3), rounds=12)
    sizes = {len(result.clients) for result in results}
    assert sizes == {0, 3, 4}
    for mine, other in zip(results, others, strict=True):
        assert len(mine.clients) == (len(other.clients) if len(other.clients) >= 3 else 0)


def test_the_server_sees_the_same_model_of_every_client() -> None:
    engine = make_engine(Algorithm(), clients=5)
    server = start(engine).server
    updates = engine.train(server, np.arange(5), {}, 1).updates
    weights = torch.tensor([0.1, 0.2, 0.3, 0.3, 0.1], dtype=torch.float64)
    released = Protection(secure=True).release(server.model, updates, weights, 5 * weights, 1).model.params
    for name, tensor in released.items():
        assert bool((tensor == tensor[0]).all())
        mean = torch.tensordot(weights, updates.model.params[name], dims=1)
        torch.testing.assert_close(tensor[0], mean, rtol=0, atol=1e-9)


def test_the_limit_of_fedsat_does_not_apply() -> None:
    """Updates 1, 1 and 10 have the mean 4 and the median 1, which the server cannot know."""
    model = Model({"w": torch.zeros(1, dtype=torch.float64)}, {})
    plain = Updates(
        clients=torch.arange(3),
        model=Model({"w": torch.tensor([[1.0], [1.0], [10.0]], dtype=torch.float64)}, {}),
        uploads={},
        sizes=torch.ones(3),
        steps=torch.ones(3),
        lr=0.1,
        epochs=1,
        population=3,
    )
    weights = torch.full((3,), 1 / 3, dtype=torch.float64)
    found = [FedSat().update(model, each, weights)["w"] for each in (plain, secure_mean(model, plain, 3 * weights))]
    torch.testing.assert_close(torch.cat(found), torch.tensor([1.0, 4.0], dtype=torch.float64))


def test_an_update_that_does_not_fit() -> None:
    engine = make_engine(Algorithm(), clients=3)
    server = start(engine).server
    updates = engine.train(server, np.arange(3), {}, 1).updates
    next(iter(updates.model.params.values()))[1] += 1e6
    with pytest.raises(TrainingError, match="an update cannot be aggregated securely"):
        secure_mean(server.model, updates, torch.ones(3))


@dataclass(frozen=True)
class Enormous(Attack):
    """Attackers add 10⁶ to every parameter."""

    def send(self, start: Model, updates: Updates, attackers: Indices, seed: int, round_number: int) -> Updates:
        """Return the updates that the server receives."""
        lying = torch.from_numpy(np.isin(updates.clients.numpy(), attackers))
        params = {name: tensor + 1e6 * per_client(lying, tensor) for name, tensor in updates.model.params.items()}
        return replace(updates, model=Model(params, updates.model.buffers))


def test_a_client_whose_update_does_not_fit_is_left_out() -> None:
    """As on real nodes, where it sends nothing; four clients are sampled, and three are needed."""
    sampled = trained("fedavg", secure=True, rounds=1)[1][0].clients
    state, (result,) = trained("fedavg", secure=True, rounds=1, faults=Faults(attack=Enormous(), attackers=sampled[:1]))
    assert result.refused == {int(sampled[0]): "update has a number above 65536, too large for secure aggregation"}
    assert result.clients.tolist() == sampled[1:].tolist()
    assert furthest(state.server.model.params, start_of("fedavg")) < 100
    with pytest.raises(TrainingError, match="an update cannot be aggregated securely"):
        trained("fedavg", secure=True, rounds=1, faults=Faults(attack=Enormous(), attackers=sampled[:2]))


def test_bytes_include_keys_and_wide_numbers() -> None:
    """4 clients: 160 + (148 + 66) · 4 bytes up, (160 + 148 + 8) · 4 down; float64 has 8 bytes anyway."""
    assert (keys_up(4), keys_down(4)) == (1016, 1264)
    (_, plain), (_, secure) = (trained("fedavg", secure=how, rounds=1) for how in (False, True))
    assert secure[0].traffic.up - plain[0].traffic.up == 4 * 1016
    assert secure[0].traffic.down - plain[0].traffic.down == 4 * 1264
    with_own = make_engine(algorithms.build("fedsat"), clients=8, local={"secure_aggregation": True})
    without = make_engine(algorithms.build({"name": "fedsat", "weighting": "samples"}), clients=8,
                          local={"secure_aggregation": True})  # fmt: skip
    alone = replace(SAMPLING, workers=1)
    bytes_of = [run_round(engine, start(engine), alone).traffic for engine in (with_own, without)]
    assert bytes_of[0].up - bytes_of[1].up == 4 * 8  # the scales
    assert (bytes_of[0].down, bytes_of[0].workers) == (bytes_of[1].down, 0)
    assert keys_up(10_000) == keys_up(101)  # masks are shared with 100 others


@pytest.mark.parametrize(
    ("method", "why"),
    [
        ("fedsat", "its weights depend on workers' evaluations of single .* use --workers 1"),
        ("fedsat:robust", "its weights depend on workers' evaluations"),
        ({"name": "fedavg", "weighting": "disco"}, "a client cannot compute its weight alone"),
        ({"name": "fedavg", "aggregator": "median"}, "its aggregator compares single updates"),
        ({"name": "fedavg", "aggregator": "multi-krum"}, "its aggregator compares single updates"),
        ("scaffold", "its server uses more of the updates"),
        ("elastic", "its server uses more of the updates"),
    ],
)
def test_what_needs_more_than_a_sum_is_refused(method: Any, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        fedsat.configure(algorithm=method, secure_aggregation=True)


def test_clients_that_evaluate_only_themselves_scale_their_updates() -> None:
    """Three rounds against the weighted mean by hand; the server knows nothing of the weights."""
    root = 0.1**0.5  # min_effective is 0.9
    least = (1 - root) / (1 + root)
    method = {"name": "fedsat", "gamma": 0.0}  # without the limit on the aggregate, which needs single updates
    local = {"secure_aggregation": True}
    engine = make_engine(algorithms.build(method), clients=8, local=local, partition="quantity")
    training, alone = start(engine), replace(SAMPLING, workers=1)
    for number in range(1, 4):
        before, states = training.server, dict(training.states)
        result = run_round(engine, training, alone)
        updates = engine.train(before, result.clients, states, number).updates
        own = engine.evaluate_workers(updates, result.clients[:, None])
        accuracy = (own.correct[:, 0].double() / own.labels[:, 0].clamp(min=1)).mean(1)
        assert len(set(accuracy.tolist())) > 1
        scales = least + (1 - least) * accuracy
        for name, tensor in updates.model.params.items():
            mean = torch.tensordot(scales / scales.sum(), tensor, dims=1)
            torch.testing.assert_close(training.server.model.params[name], mean, rtol=0, atol=1e-8)
        assert result.client_weights.weights.tolist() == [0.25] * 4
        assert result.client_weights.client_scores is None


def test_clients_that_evaluate_only_themselves_never_enlarge_an_update() -> None:
    """Four of five scales are far below 1: the largest must not become more than 1 by dividing by their mean."""
    engine = make_engine(algorithms.build({"name": "fedsat", "gamma": 0.0}), clients=5)
    server = start(engine).server
    updates = engine.train(server, np.arange(5), {}, 1).updates
    counts = torch.tensor([10.0, 0, 0, 0, 0])[:, None, None]
    known, scales = weigh_alone(engine.algorithm, updates, ClassCounts(0 * counts + 10, counts, 0 * counts + 10))
    assert scales.max() == 1
    assert known.weights.tolist() == [0.2] * 5
    next(iter(updates.model.params.values()))[0] += 60_000
    assert not too_large(server.model, updates, engine.algorithm.weighting).any()
    mean = secure_mean(server.model, updates, scales).model.params
    name = next(iter(mean))
    wanted = torch.tensordot(scales / scales.sum(), updates.model.params[name].double(), dims=1)
    torch.testing.assert_close(mean[name][0].double(), wanted, rtol=1e-6, atol=1e-6)


def test_scales_by_hand() -> None:
    """Accuracies (1, 0, 1/2) and (0, 0, 1); the mean 1/2 and 1/3. With e = 0.75: x = 1/2, a = 1/3."""
    counts = ClassCounts(
        predicted=torch.tensor([[[2, 0, 4]], [[0, 0, 5]]]),
        correct=torch.tensor([[[2, 0, 2]], [[0, 0, 5]]]),
        labels=torch.tensor([[[2, 0, 4]], [[0, 0, 5]]]),
    )
    scales = PrioritizedClassWeights(min_effective=0.75).own_scale(counts)
    assert scales is not None
    assert scales.tolist() == pytest.approx([1 / 3 + 2 / 3 / 2, 1 / 3 + 2 / 3 / 3])
    assert PrioritizedClassWeights(min_effective=1).own_scale(counts).tolist() == [1, 1]  # type: ignore[union-attr]


@pytest.mark.parametrize("effective", [0.5, 0.9])
def test_the_effective_clients_of_any_scales(effective: float) -> None:
    """The worst case has a share a/(1 + a) of ones, by Kantorovich; there, the bound is reached."""
    counts = torch.zeros(1, 1, 2, dtype=torch.int64)
    least = PrioritizedClassWeights(min_effective=effective).own_scale(ClassCounts(counts, counts, counts))
    assert least is not None
    found = []
    for ones in range(1001):
        total, squares = ones + (1000 - ones) * least, ones + (1000 - ones) * least**2
        found.append(float(total**2 / squares / 1000))
    assert min(found) == pytest.approx(effective, abs=1e-5)
    assert min(found) >= effective - 1e-12


def test_sums_of_scales_that_cannot_be_are_refused() -> None:
    words = np.array([7, 9], dtype=np.uint64)
    total, scales = without_scales(with_scale(words, 0.75) + with_scale(words, 0.5), 2)
    assert (total.tolist(), scales) == ([14, 18], 1.25)
    for one, other in ((1.0, 1.5), (1.0, -1.0)):
        with pytest.raises(SkippedRoundError, match="the scales of 2 clients add up to"):
            without_scales(with_scale(words, one) + with_scale(words, other), 2)


def test_further_uploads_are_refused() -> None:
    class Uploading(Algorithm):
        def end(self, task: Any, carry: Any, result: Any) -> Any:
            return {}, {"extra": result.params}

    assert why_not(Uploading(), 15) == "clients also upload extra"
    assert why_not(Algorithm(), 15) is None


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"algorithm": "fedsat:paper"}, "a client cannot compute its weight alone"),
        ({"algorithm": "fedsat:robust"}, "a client cannot compute its weight alone"),
        ({"algorithm": "fedsat", "privacy": "local"}, "scale their updates by exact counts"),
    ],
)
def test_what_a_client_alone_cannot_do_is_refused(settings: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        fedsat.configure(**settings, workers=1, secure_aggregation=True)
    assert fedsat.configure(algorithm="fedsat", workers=1, secure_aggregation=True).workers == 1


def test_settings_without_effect_are_refused() -> None:
    table: dict[str, Any] = {"algorithm": "fedavg", "secure_aggregation": True}
    with pytest.raises(UsageError, match="max_norm is 20, but with secure aggregation, the server sees no single"):
        fedsat.configure(**table, max_norm=20)
    with pytest.raises(UsageError, match="per_round is 2; with secure aggregation, it must be at least 3"):
        fedsat.configure(**table, per_round=2)
    assert Config.of({**table, "max_norm": 0.0}).secure_aggregation
