"""FedSat's correction by hand (equations 5 to 7), and the special cases without its parts."""

from __future__ import annotations

from dataclasses import replace
from math import log

import pytest
import torch

from fedsat.algorithms import (
    Algorithm,
    FedAvg,
    FedSat,
    LocalResult,
    Model,
    Outputs,
    PredictionSensitiveLoss,
    PrioritizedClassWeights,
    Server,
    Task,
    algorithms,
)
from fedsat.algorithms.fedsat import reach
from fedsat.algorithms.objective import CrossEntropy
from fedsat.algorithms.weighting import BySamples
from fedsat.errors import UsageError
from fedsat.tree import State
from tests.support.byhand import after_rounds, make_batch, make_task, make_updates, one, same, scalar


def memory(direction: float, share: float = 1.0, variance: float = 0.0) -> State:
    signal = {"share": torch.tensor(share).double(), "variance": torch.tensor(variance).double()}
    return {"direction": scalar(direction), "signal": signal}


def task(received: float, kept: tuple[float, ...], lr: float = 0.1, share: float = 1.0) -> Task:
    return make_task(len(kept), received=memory(received, share), state={"direction": one(*kept)}, lr=lr, epochs=5)


def test_local_step_is_corrected() -> None:
    # γ = 0.5, v_t = 3, v = (1, 5): drift 0.5·(3−1) = 1 and 0.5·(3−5) = −1.
    # Gradients 2 and 2, η = 0.1: 1 − 0.1·(2+1) = 0.7 and 1 − 0.1·(2−1) = 0.9.
    method, given = FedSat(gamma=0.5), task(3.0, (1.0, 5.0))
    params, _ = method.step(given, method.begin(given), one(1.0, 1.0), one(2.0, 2.0))
    assert params["w"].flatten().tolist() == pytest.approx([0.7, 0.9])


def test_client_keeps_its_mean_raw_gradient() -> None:
    # K = (2, 4) steps end at (0.4, 1.4) from 1: displacement/(ηK) = 0.6/0.2 = 3 and −0.4/0.4 = −1;
    # minus the drift (1, −1): v = 2 and 0. With raw gradients 2, 2, the first client indeed goes 1 → 0.7 → 0.4.
    method, given = FedSat(gamma=0.5), task(3.0, (1.0, 5.0))
    state, upload = method.end(given, method.begin(given), LocalResult(one(0.4, 1.4), {}, torch.tensor([2, 4])))
    assert state["direction"]["w"].flatten().tolist() == pytest.approx([2.0, 0.0])
    assert upload == {}


def test_a_long_update_moves_the_model_no_farther_than_the_median_one() -> None:
    # Updates 1, 1, 1, 40 of weight 1/4; the median length is 1, so 40 counts as 8, and the mean 2.75 as 1.
    # Θ' = 1 + 1, v = −1/(0.1·2).
    quarter, server = torch.full((4,), 0.25, dtype=torch.float64), Server(Model(scalar(1.0), {}), memory(0.0))
    after = FedSat().aggregate(server, make_updates(one(2, 2, 2, 41), [2] * 4, 0.1), quarter)
    assert float(after.model.params["w"]) == pytest.approx(2.0)
    assert float(after.memory["direction"]["w"]) == pytest.approx(-5.0)
    # Without the correction, and as printed, nothing feeds back.
    for free in (FedSat(correction=False), FedSat(gamma=0), FedSat(scale="paper")):
        after = free.aggregate(server, make_updates(one(0, 2, 2, 41), [2] * 4, 0.1), quarter)
        assert float(after.model.params["w"]) == pytest.approx(11.25)


def test_an_update_counts_as_at_most_eight_usual_ones() -> None:
    # Ten updates −1, ten 1, and 40, which counts as 8: the mean is 8/21, wherever the long one points.
    start, weights = Model(scalar(1.0), {}), torch.full((21,), 1 / 21, dtype=torch.float64)
    for end, mean in ((41, 8 / 21), (-39, -8 / 21)):
        found = FedSat().update(start, make_updates(one(*[0] * 10, *[2] * 10, end), [2] * 21, 0.1), weights)
        assert float(found["w"]) == pytest.approx(mean)


def test_more_steps_may_lead_farther() -> None:
    # Steps 2, 2, 2, 20 (median 2): 8 is less than 2·10, and the mean (3 + 8)/4 = 2.75 less than (3 + 10)/4 = 3.25.
    updates = make_updates(one(1, 1, 1, 8), [2, 2, 2, 20], 0.1)
    quarter = torch.full((4,), 0.25, dtype=torch.float64)
    assert reach(torch.tensor([1.0, 1, 1, 8]), updates, quarter).tolist() == pytest.approx([1, 1, 1, 10])
    assert float(FedSat().update(Model(scalar(0), {}), updates, quarter)["w"]) == pytest.approx(2.75)
    # Clients that did not move do not count.
    alike = make_updates(one(0, 8, 3, 0), [2] * 4, 0.1)
    assert reach(torch.tensor([0.0, 8, 3, 0]), alike, quarter).tolist() == pytest.approx([3, 3, 3, 3])
    still = make_updates(one(0, 0), [1, 1], 0.1)
    assert float(FedSat().update(Model(scalar(0), {}), still, quarter[:2] * 2)["w"]) == 0


def test_server_direction_uses_the_weighted_steps() -> None:
    # Weights (0.75, 0.25), models (0.4, 1.4): Θ' = 0.65, moved by 0.35. K̄ = 0.75·2 + 0.25·4 = 2.5.
    # v = 0.35/(η_g η K̄) = 0.35/0.25 = 1.4.
    method = FedSat()
    server = Server(Model(scalar(1.0), {}), memory(0.0))
    after = method.aggregate(server, make_updates(one(0.4, 1.4), [2, 4], 0.1), torch.tensor([0.75, 0.25]).double())
    assert float(after.model.params["w"]) == pytest.approx(0.65)
    assert float(after.memory["direction"]["w"]) == pytest.approx(1.4)
    # With η_g = 0.5 the model moves half as far, and v, in gradient units, stays the same.
    half = FedSat(server_lr=0.5)
    after = half.aggregate(server, make_updates(one(0.4, 1.4), [2, 4], 0.1), torch.tensor([0.75, 0.25]).double())
    assert float(after.model.params["w"]) == pytest.approx(0.825)
    assert float(after.memory["direction"]["w"]) == pytest.approx(1.4)


def test_inertia_keeps_some_of_the_former_direction() -> None:
    # As above, the direction is 1.4; a quarter of the previous v = −2 is kept: 0.75·1.4 − 0.25·2 = 0.55.
    server = Server(Model(scalar(1.0), {}), memory(-2.0))
    updates, weights = make_updates(one(0.4, 1.4), [2, 4], 0.1), torch.tensor([0.75, 0.25]).double()
    after = FedSat(inertia=0.25).aggregate(server, updates, weights)
    assert float(after.model.params["w"]) == pytest.approx(0.65)  # the model's update is unchanged
    assert float(after.memory["direction"]["w"]) == pytest.approx(0.55)
    with pytest.raises(UsageError, match="below 1"):
        FedSat(inertia=1.0)


def test_noise_in_the_global_direction_weakens_the_correction() -> None:
    # K̄ = 2 and η = 0.1, so noise of 0.1 in the mean is s = 0.5 in v. v = (1 − 3)/0.2 = −10: 1 − 0.25/100 is signal.
    method, half = FedSat(gamma=0.5), torch.full((2,), 0.5, dtype=torch.float64)
    server = Server(Model(scalar(1.0), {}), memory(0.0))
    first = method.aggregate(server, replace(make_updates(one(3, 3), [2, 2], 0.1), noise=0.1), half)
    assert float(first.memory["signal"]["share"]) == pytest.approx(0.9975)
    assert float(first.memory["signal"]["variance"]) == pytest.approx(0.25)
    # v = (3 − 2)/0.2 = 5. Its noise is new, or inherited with γ · 0.9975: s² = 0.25 + (0.49875 · 0.5)² = 0.312188.
    noisy = replace(make_updates(one(2, 2), [2, 2], 0.1), noise=0.1)
    second = method.aggregate(first, noisy, half)
    assert float(second.memory["signal"]["variance"]) == pytest.approx(0.31218789)
    assert float(second.memory["signal"]["share"]) == pytest.approx(1 - 0.31218789 / 25)
    # With inertia 0.5: v = (5 − 10)/2, half of the new noise, and (0.5 · 0.49875 + 0.5) of the former.
    slow = replace(method, inertia=0.5).aggregate(first, noisy, half)
    assert float(slow.memory["signal"]["variance"]) == pytest.approx(0.25**2 + (0.749375 * 0.5) ** 2)
    assert float(slow.memory["signal"]["share"]) == pytest.approx(1 - (0.0625 + 0.14039) / 6.25, abs=1e-5)
    nothing = method.aggregate(first, replace(noisy, noise=10.0), half)
    assert float(nothing.memory["signal"]["share"]) == 0


def test_clients_trust_the_signal_alone() -> None:
    # γ = 0.5 and half of v_t is signal: drift 0.25 · (3 − 1) = 0.5. Without own samples, two steps go to 1 − 2 · 0.075.
    method, given = FedSat(gamma=0.5), task(3.0, (1.0,), share=0.5)
    assert float(method.begin(given)["drift"]["w"]) == pytest.approx(0.5)
    assert float(method.start_of_update(given, torch.tensor([2]))["w"]) == pytest.approx(0.85)


def test_direction_is_momentum_minus_the_clients_last_directions() -> None:
    # γ = 0.5, v_t = 3, v_k = (1, 5), raw gradients 2 and 4, one step each, weights one half:
    # v_{t+1} = γ v_t + mean(g_k − γ v_k) = 1.5 + ((2 − 0.5) + (4 − 2.5))/2 = 3.
    method, given = FedSat(gamma=0.5), task(3.0, (1.0, 5.0))
    params, _ = method.step(given, method.begin(given), one(1.0, 1.0), one(2.0, 4.0))
    after = method.aggregate(
        Server(given.start, memory(0.0)), make_updates(params, [1, 1], 0.1), torch.tensor([0.5, 0.5]).double()
    )
    assert float(after.memory["direction"]["w"]) == pytest.approx(3.0)


def test_paper_scale_of_the_global_direction() -> None:
    # v_t = (η/E)(Θ_t − Θ_{t−1}) = (0.1/5)·(0.65 − 1) = −0.007.
    method = FedSat(scale="paper", gamma=1)
    server = Server(Model(scalar(1.0), {}), memory(0.0))
    after = method.aggregate(server, make_updates(one(0.4, 1.4), [2, 4], 0.1), torch.tensor([0.75, 0.25]).double())
    assert float(after.memory["direction"]["w"]) == pytest.approx(-0.007)


def test_paper_scale_takes_the_gradient_at_the_final_model_over_all_samples() -> None:
    # Logits (θx, 0). A ends at θ = log 3 with three samples x = 1: p = (¾, ¼), so 0 is predicted for labels 0, 0, 1.
    # Gradients −¼, −¼ and ¾ of CE; the mistake costs 1 + (2 − 0)/(3 − 0) = 5/3: mean (−¼ − ¼ + 5/4)/3 = ¼.
    # B ends at θ = −½ log 3 with one sample x = 2 of class 1: p = (¼, ¾), rightly predicted, gradient ¼·2 = ½.
    # v_k ← v_k − v_t + η·gradient = 1 − 3 + 0.1/4 = −1.975 and 5 − 3 + 0.1/2 = 2.05. The steps do not matter.
    x = [[[1.0], [1.0]], [[2.0], [2.0]]]
    batches = [
        make_batch(x, [[0, 0], [1, 1]], [[True, True], [True, False]]),
        make_batch(x, [[1, 0], [0, 0]], [[True, False], [False, False]]),  # the rest is padding
    ]
    given = replace(
        task(3.0, (1.0, 5.0)),
        class_counts=torch.tensor([[2, 1], [0, 1]]),
        network=lambda params, buffers, x: Outputs(torch.cat([params["w"].unsqueeze(1) * x, 0 * x], -1)),
        examples=lambda: iter(batches),
    )
    objective = PredictionSensitiveLoss(epsilon2=2, over="all", source="evaluation", tau=0)
    method = FedSat(gamma=1, scale="paper", objective=objective)
    carry, costs = method.begin(given), {"mistakes": torch.tensor([[[3.0, 1.0], [2.0, 0.0]]] * 2)}
    _, carry = method.step(given, carry, one(9.0, 9.0), one(2.0, 4.0))
    result = LocalResult(one(log(3), -log(3) / 2), {}, torch.tensor([2, 2]), costs)
    state, _ = method.end(given, carry, result)
    assert state["direction"]["w"].flatten().tolist() == pytest.approx([-1.975, 2.05])


def test_all_parts_off_is_fedavg_bit_for_bit() -> None:
    bare = FedSat(objective=CrossEntropy(), weighting=BySamples(), correction=False)
    assert same(after_rounds(bare), after_rounds(FedAvg()))


def test_gamma_zero_is_no_correction_bit_for_bit() -> None:
    assert same(after_rounds(FedSat(gamma=0)), after_rounds(FedSat(correction=False)))


def test_epsilons_of_one_are_cross_entropy_bit_for_bit() -> None:
    flat = FedSat(objective=PredictionSensitiveLoss(epsilon1=1, epsilon2=1, tau=0))
    assert same(after_rounds(flat), after_rounds(FedSat(objective=CrossEntropy())))


@pytest.mark.parametrize(
    "other",
    [
        FedSat(gamma=0.5),
        FedSat(scale="paper"),
        FedSat(objective=CrossEntropy()),
        FedSat(weighting=BySamples()),
        FedSat(objective=PredictionSensitiveLoss(over="all")),
        FedSat(objective=PredictionSensitiveLoss(source="evaluation")),
        FedSat(objective=PredictionSensitiveLoss(memory=0.5)),
        FedSat(weighting=PrioritizedClassWeights(priority="hard")),
        FedSat(weighting=PrioritizedClassWeights(weights="product")),
        FedAvg(),
    ],
)
def test_every_option_changes_the_result(other: Algorithm) -> None:
    assert not same(after_rounds(FedSat()), after_rounds(other))


def test_presets() -> None:
    as_printed = algorithms.build("fedsat:paper")
    assert as_printed == FedSat(
        gamma=1,
        scale="paper",
        objective=PredictionSensitiveLoss(epsilon2=2, over="all", source="evaluation", tau=0),
        weighting=PrioritizedClassWeights(priority="hard", weights="product", fnr="paper", min_effective=0, sigma=1),
    )
    assert algorithms.name_of(as_printed) == "fedsat:paper"
    assert algorithms.build("fedsat") == FedSat()
    with pytest.raises(UsageError, match="gamma"):
        FedSat(gamma=-1)
