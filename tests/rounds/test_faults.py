"""Clients that drop out, straggle or attack, and what the server refuses: both engines, every method."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from fedsat.algorithms import FedAvg, FedSat, Model, PrioritizedClassWeights, algorithms
from fedsat.engine import SequentialEngine
from fedsat.errors import TrainingError
from fedsat.metrics import ClassCounts
from fedsat.rounds import Attack, Engine, Faults, FederationState, RoundResult, Sampling, attacks, run_round, start
from fedsat.rounds.local import TrainedRound
from fedsat.rounds.refusal import refuse_reports, refuse_updates
from fedsat.rounds.sampling import draw_attackers
from fedsat.tree import finite
from tests.support.byhand import make_updates, one, scalar, values
from tests.support.federations import furthest, make_engine, stacked

SAMPLING = Sampling(per_round=6, workers=4, seed=3)
SKEWED: dict[str, Any] = {"partition": {"name": "lsmc", "classes_per_client": 2}, "clients": 15}
ATTACKERS = draw_attackers(3, 15, 0.4)


def run_rounds(engine: Engine, faults: Faults, rounds: int = 2) -> tuple[FederationState, list[RoundResult]]:
    training = start(engine)
    return training, [run_round(engine, training, SAMPLING, faults) for _ in range(rounds)]


# Faults


@pytest.mark.parametrize("method", list(algorithms))
def test_every_method_continues_without_some_clients_and_workers(method: str) -> None:
    training, rounds = run_rounds(
        make_engine(algorithms.build(method), stragglers=0.5, **SKEWED), Faults(dropout=0.4), 3
    )
    assert any(one.missing for one in rounds)
    for one_round in rounds:
        assert len(one_round.clients) + len(one_round.missing) == SAMPLING.per_round
        assert not set(one_round.missing) & set(one_round.clients.tolist())
        assert len(one_round.client_weights.weights) == len(one_round.clients)
        assert float(one_round.client_weights.weights.sum()) == pytest.approx(1)
    assert set(training.states) == {client for one_round in rounds for client in one_round.clients.tolist()}
    assert all(bool(torch.isfinite(tensor).all()) for tensor in training.server.model.params.values())


def test_a_round_without_responses_is_skipped() -> None:
    training, rounds = run_rounds(make_engine(FedSat(), **SKEWED), Faults(dropout=1.0))
    fresh = start(make_engine(FedSat(), **SKEWED))
    assert training.rounds == 2
    assert not training.states
    assert furthest(training.server.model.params, fresh.server.model.params) == 0
    assert rounds[0].client_weights.effective_clients == 0
    assert rounds[0].traffic.down > 0
    assert rounds[0].traffic.up == 0


def test_weights_are_normalised_over_the_clients_that_responded() -> None:
    engine = make_engine(FedAvg(), partition={"name": "quantity", "beta": 0.5}, clients=15)
    _, (result,) = run_rounds(engine, Faults(dropout=0.5), 1)
    assert result.missing
    sizes = engine.federation.sizes[result.clients]
    assert result.client_weights.weights.tolist() == pytest.approx((sizes / sizes.sum()).tolist())


def test_stragglers_take_fewer_steps() -> None:
    # 6 samples each, batches of 4: two steps per epoch.
    engine = make_engine(FedAvg(), epochs=4, stragglers=0.5, clients=15)
    clients = np.arange(15)
    steps = engine.train(start(engine).server, clients, {}, 1).updates.steps.tolist()
    assert steps == [engine.training.work_of(client, 1, 6)[1] for client in range(15)]
    assert set(steps) <= {2, 4, 6, 8}
    assert 8 in steps
    assert min(steps) < 8
    everyone = make_engine(FedAvg(), epochs=4, stragglers=1.0, clients=15)
    assert max(everyone.train(start(everyone).server, clients, {}, 1).updates.steps.tolist()) == 6


@pytest.mark.parametrize("attack", list(attacks))
@pytest.mark.parametrize("method", ["fedsat", "scaffold"])
def test_both_engines_agree_with_faults_and_attacks(method: str, attack: str) -> None:
    options = {**SKEWED, "stragglers": 0.5, "augment": False}
    faults = Faults(0.2, 5.0, attacks.build(attack), ATTACKERS)
    made = []
    for kind in (SequentialEngine, stacked):
        engine = make_engine(
            algorithms.build(method), engine=kind, attack=faults.attack, attackers=ATTACKERS, **options
        )
        made.append(run_rounds(engine, faults))
    (left, first), (right, second) = made
    assert furthest(left.server.model.params, right.server.model.params) < 1e-9
    for ours, theirs in zip(first, second, strict=True):
        assert (ours.missing, ours.refused.keys(), ours.traffic) == (
            theirs.missing,
            theirs.refused.keys(),
            theirs.traffic,
        )
        torch.testing.assert_close(ours.client_weights.weights, theirs.client_weights.weights, rtol=0, atol=1e-9)


# Refused updates


def trained(*params: float, steps: Sequence[int] | None = None) -> TrainedRound:
    """Return clients with these models after these numbers of steps (default: one); states are the clients' numbers."""
    clients = len(params)
    states = [{"kept": scalar(float(client))} for client in range(clients)]
    updates = make_updates(one(*params), list(steps or [1] * clients), 0.1)
    return TrainedRound(updates, states, {"loss": torch.zeros(clients), "finite": updates.steps})


def test_updates_that_are_not_finite_or_too_long_are_refused() -> None:
    # From Θ = 1 the clients move by 1, 2, 3, −8, 4 and NaN. The median length of the finite ones is 3.
    start_at = Model(scalar(1), {})
    given = trained(2, 3, 4, -7, 5, float("nan"))
    left, refused = refuse_updates(given, start_at, 2.5, 1)
    assert left.updates.clients.tolist() == [0, 1, 2, 4]
    assert [values(state["kept"]) for state in left.states] == [[0.0], [1.0], [2.0], [4.0]]
    assert refused == {3: "update is 2.67 times as long as the median", 5: "not finite"}
    assert refuse_updates(given, start_at, 2.7, 1)[1] == {5: "not finite"}
    assert refuse_updates(given, start_at, 0, 1)[1] == {5: "not finite"}


def test_clients_with_more_steps_may_send_longer_updates() -> None:
    # Lengths 1, 1, 1, 30, 30 with 2, 2, 4, 40, 8 steps. Medians are 1 and 4: the last two may be 10 and 2 times longer.
    given = trained(1, 1, 1, 30, 30, steps=[2, 2, 4, 40, 8])
    assert refuse_updates(given, Model(scalar(0), {}), 10, 1)[1] == {4: "update is 15 times as long as the median"}


def test_if_most_updates_are_zero_none_is_too_long() -> None:
    # One-class clients of FedLC return the model they received: a median of 0 is no measure.
    assert refuse_updates(trained(1, 1, 5), Model(scalar(1), {}), 10, 1)[1] == {}


def test_an_upload_that_is_not_finite_is_refused() -> None:
    given = trained(1, 2)
    given = replace(given, updates=replace(given.updates, uploads={"more": one(1, float("inf"))}))
    assert refuse_updates(given, Model(scalar(0), {}), 0, 1)[1] == {1: "not finite"}


def test_which_clients_are_finite() -> None:
    large = torch.finfo(torch.float64).max
    rows = [[1.0, -large], [math.nan, 1.0], [math.inf, -math.inf], [large, large], [0.0, -0.0]]
    real = torch.tensor(rows, dtype=torch.float64)
    counts = torch.tensor([1, 2, 3, 4, 5])  # as BatchNorm's counters
    assert finite([{"w": real, "n": counts}]).tolist() == [True, False, False, True, True]
    assert finite([{"w": real}, {"v": torch.tensor([0.0, 0.0, 0.0, math.inf, 0.0])}]).tolist()[3:] == [False, True]


def test_if_nothing_is_finite_the_training_stops() -> None:
    with pytest.raises(TrainingError, match="round 7, client 0, after 1 steps: an uploaded value is not finite"):
        refuse_updates(trained(float("nan"), float("inf")), Model(scalar(0), {}), 0, 7)


class Broken(Attack):
    """One client always sends NaN."""

    def send(self, start: Model, updates: Any, attackers: Any, seed: int, round_number: int) -> Any:
        params = {name: tensor.clone() for name, tensor in updates.model.params.items()}
        for tensor in params.values():
            tensor[0] = float("nan")
        return replace(updates, model=Model(params, updates.model.buffers))


@pytest.mark.parametrize("method", list(algorithms))
def test_a_refused_client_leaves_no_trace(method: str) -> None:
    training, rounds = run_rounds(make_engine(algorithms.build(method), **SKEWED), Faults(attack=Broken()), 1)
    assert list(rounds[0].refused.values()) == ["not finite"]
    (refused,) = rounds[0].refused
    assert refused not in training.states
    assert refused not in rounds[0].clients
    trees = [training.server.model.params, *training.server.memory.values()]
    assert all(bool(torch.isfinite(tensor).all()) for tree in trees for tensor in tree.values())


# Workers' reports


def reports(predicted: Any, correct: Any, labels: Any, workers: Any = None) -> ClassCounts:
    nodes = None if workers is None else torch.tensor(workers)
    return ClassCounts(torch.tensor(predicted), torch.tensor(correct), torch.tensor(labels), nodes)


def test_reports_that_cannot_be_true_are_refused() -> None:
    # Two clients, workers 10, 11, 12 and 10, 11, 13; two classes. Worker 11 claims other labels the second time,
    # worker 12 has more hits than predictions, worker 13 predicts five of four samples.
    given = reports(
        [[[2, 2], [3, 1], [1, 3]], [[1, 3], [2, 2], [4, 1]]],
        [[[1, 1], [2, 1], [2, 2]], [[1, 2], [1, 1], [2, 1]]],
        [[[2, 2], [2, 2], [2, 2]], [[2, 2], [1, 3], [2, 2]]],
        [[10, 11, 12], [10, 11, 13]],
    )
    left, refused = refuse_reports(given)
    assert refused == {
        11: "labels differ between reports", 12: "impossible counts", 13: "impossible counts"
    }  # fmt: skip
    assert left.labels.tolist() == [[[2, 2], [0, 0], [0, 0]], [[2, 2], [0, 0], [0, 0]]]
    assert left.correct[:, 0].tolist() == [[1, 1], [1, 2]]
    assert int(left.predicted[:, 1:].sum()) == 0


def test_workers_that_did_not_report_contradict_nobody() -> None:
    given = reports([[[2, 2]], [[1, 3]]], [[[1, 1]], [[1, 2]]], [[[2, 2]], [[2, 2]]], [[5], [5]])
    gone = given.without(torch.tensor([[True], [False]]))
    left, refused = refuse_reports(gone)
    assert not refused
    assert left.labels.tolist() == [[[0, 0]], [[2, 2]]]


# Attacks


def sent(attack: Attack, **given: Any) -> list[float]:
    """Return what the server receives from clients 0, 1, 2 with models 2, 3, 5 after Θ = 1, if client 1 attacks."""
    updates = make_updates(one(2, 3, 5), [1, 1, 1], 0.1, **given)
    return values(attack.send(Model(scalar(1), {}), updates, np.array([1, 9]), 3, 4).model.params)


def test_false_updates_by_hand() -> None:
    assert sent(attacks.build("none")) == [2, 3, 5]
    assert sent(attacks.build("sign-flip")) == [2, -1, 5]
    assert sent(attacks.build({"name": "scale", "factor": 4.0})) == [2, 9, 5]
    assert sent(attacks.build("free-rider")) == [2, 1, 5]
    assert sent(attacks.build("lying-worker")) == [2, -1, 5]
    assert sent(attacks.build({"name": "lying-worker", "sends": "honest"})) == [2, 3, 5]


def test_noise_has_the_length_asked_for_and_repeats() -> None:
    start_at = Model({"w": torch.zeros(4000, dtype=torch.float64)}, {})
    params = {"w": torch.full((2, 4000), 0.5, dtype=torch.float64)}
    updates = make_updates(params, [1, 1], 0.1)
    noise = attacks.build({"name": "noise", "factor": 3.0})
    first, again, later = (
        noise.send(start_at, updates, np.array([1]), 3, number).model.params["w"] for number in (4, 4, 5)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, later)
    assert torch.equal(first[0], params["w"][0])
    assert float(first[1].norm() / params["w"][1].norm()) == pytest.approx(3, rel=0.05)
    assert torch.equal(updates.model.params["w"], params["w"])


@pytest.mark.parametrize("validation", [0.0, 0.3])
def test_flipped_labels_are_the_attackers_alone(validation: float) -> None:
    federation = make_engine(FedAvg(), **SKEWED, validation=validation).federation
    flipped = attacks.build("label-flip").poison(federation, ATTACKERS)
    for before, after in (
        (federation.class_counts, flipped.class_counts),
        (federation.class_mixes, flipped.class_mixes),
    ):
        for client in range(15):
            there = before[client]
            assert after[client].tolist() == (there[::-1] if client in ATTACKERS else there).tolist()


def test_lying_workers_favour_each_other() -> None:
    # Clients 1 and 2 with workers 7 and 1: 1 and 7 lie. Class counts (4, 2, 0), inflated to (8, 4, 0).
    workers, labels = np.array([[1, 7], [2, 7]]), [4, 2, 0]
    honest = reports([[[3, 2, 1]] * 2] * 2, [[[3, 1, 0]] * 2] * 2, [[labels] * 2] * 2)
    attack = attacks.build({"name": "lying-worker", "inflate": 2})
    reported = attack.report(honest, np.array([1, 2]), workers, np.array([1, 7]))
    assert reported.labels.tolist() == [[[8, 4, 0], [8, 4, 0]], [[4, 2, 0], [8, 4, 0]]]
    assert reported.correct.tolist() == [[[8, 4, 0], [8, 4, 0]], [[3, 1, 0], [0, 0, 0]]]
    assert reported.predicted.tolist() == [[[8, 4, 0], [8, 4, 0]], [[3, 2, 1], [0, 8, 4]]]
    known = replace(reported, workers=torch.from_numpy(workers))
    assert refuse_reports(known)[1] == {}  # a careful lie contradicts nothing


def test_lies_move_the_weights_of_the_sum() -> None:
    def share(attack: str) -> float:
        faults = Faults(attack=attacks.build(attack), attackers=ATTACKERS)
        _, rounds = run_rounds(make_engine(FedAvg(weighting=PrioritizedClassWeights()), **SKEWED), faults, 3)
        return sum(
            float(one_round.client_weights.weights[torch.from_numpy(np.isin(one_round.clients, ATTACKERS))].sum())
            for one_round in rounds
        )

    assert share("lying-worker") > share("sign-flip")


def test_defences_change_nothing_without_faults() -> None:
    plain, _ = run_rounds(make_engine(FedSat(), **SKEWED), Faults())
    wary, rounds = run_rounds(make_engine(FedSat(), **SKEWED), Faults(max_norm=50.0, attackers=ATTACKERS))
    assert furthest(plain.server.model.params, wary.server.model.params) == 0
    assert not any(one_round.refused or one_round.missing or one_round.refused_workers for one_round in rounds)
