"""FedLADA by hand, and the special case that equals FedAvg."""

from __future__ import annotations

import pytest
import torch

from fedsat.algorithms import FedAvg, FedLADA, LocalResult, Model, Server, Uniform
from tests.support.byhand import Bowl, Bowls, after_rounds, make_task, make_updates, one, same, scalar, values

METHOD = FedLADA(alpha=0.5, beta1=0.5, beta2=0.5, epsilon=1)


def test_local_steps_by_hand() -> None:
    # Θ = 1, v = 1, g_a = 2, η = 0.5. Gradients: A 7 then 1, B −1 then −1.
    given = make_task(2, received={"second_moment": scalar(1), "direction": scalar(2)}, lr=0.5)
    carry = METHOD.begin(given)
    # A: m = ½·7 = 3.5, u = ½·1 + ½·49 = 25 = v̂; ½·3.5/5 + ½·2 = 1.35; θ = 1 − 0.675 = 0.325.
    # B: m = −0.5, u = 1 = v̂; −0.25 + 1 = 0.75; θ = 0.625.
    params, carry = METHOD.step(given, carry, one(1, 1), one(7, -1))
    assert values(params) == pytest.approx([0.325, 0.625])
    # A: m = 1.75 + 0.5 = 2.25, u = 12.5 + 0.5 = 13 but v̂ stays 25; ½·2.25/5 + 1 = 1.225; θ = 0.325 − 0.6125 = −0.2875.
    # B: m = −0.75, v̂ = 1; −0.375 + 1 = 0.625; θ = 0.3125.
    params, carry = METHOD.step(given, carry, params, one(1, -1))
    assert values(params) == pytest.approx([-0.2875, 0.3125])
    state, upload = METHOD.end(given, carry, LocalResult(params, {}, torch.tensor([2, 2])))
    assert state == {}
    assert values(upload["second_moment"]) == pytest.approx([25, 1])


def test_server_by_hand() -> None:
    # Θ = 1; models −0.2875 after two steps and 0.625 after one, η = 0.5; sizes 9 and 1 do not count.
    # Θ = 0.16875; v = (25 + 1)/2 = 13; g_a = ½·(1.2875/(0.5·2) + 0.375/0.5) = ½·(1.2875 + 0.75) = 1.01875.
    updates = make_updates(
        one(-0.2875, 0.625), [2, 1], 0.5, uploads={"second_moment": one(25, 1)}, sizes=torch.tensor([9, 1])
    )
    weights = METHOD.weighting.weigh(updates, None).weights
    after = METHOD.aggregate(Server(Model(scalar(1), {})), updates, weights)
    assert values(after.model.params) == pytest.approx([0.16875])
    assert values(after.memory["second_moment"]) == pytest.approx([13])
    assert values(after.memory["direction"]) == pytest.approx([1.01875])


def test_two_rounds_by_hand() -> None:
    # v stays 1 (β₂ = 1, ε = 1) and m = g (β₁ = 0): steps are 0.5·(½ g + ½ g_a).
    # Round 1, g_a = 0. A (b = 4): g = −4, −3: 0 → 1 → 1.75. B (b = −4): g = 4: 0 → −1.
    # Θ = 0.375; g_a = ½·(−1.75/1 + 1/0.5) = 0.125.
    method = FedLADA(alpha=0.5, beta1=0, beta2=1, epsilon=1)
    bowls = Bowls(method, [Bowl(4, K=2, n=9), Bowl(-4, K=1, n=1)], lr=0.5)
    assert (bowls.memory("second_moment"), bowls.memory("direction")) == (1, 0)
    bowls.run_round(0, 1)
    assert (bowls.theta, bowls.memory("direction")) == (0.375, 0.125)
    # Round 2. A: g = −3.625: −1.75, θ = 1.25; g = −2.75: −1.3125, θ = 1.90625. B: g = 4.375: 2.25, θ = −0.75.
    # Θ = 0.578125; g_a = ½·((0.375 − 1.90625)/1 + (0.375 + 0.75)/0.5) = ½·(−1.53125 + 2.25) = 0.359375.
    bowls.run_round(0, 1)
    assert (bowls.theta, bowls.memory("direction")) == (0.578125, 0.359375)


def test_first_steps_are_the_sign_of_the_gradient() -> None:
    # v = ε² = 1e−16: m/√v̂ = (1 − β₁)/√(1 − β₂) = 0.1/0.1 whatever the size of the gradient; times α η = 0.01.
    method = FedLADA()
    memory = method.initial_memory(Model(scalar(1), {}))
    given = make_task(3, received=memory)
    params, _ = method.step(given, method.begin(given), one(1, 1, 1), one(5, -0.01, 0))
    assert values(params) == pytest.approx([0.99, 1.01, 1])


def test_alpha_one_without_adaptation_is_fedavg_bit_for_bit() -> None:
    # Four clients a round: the mean of four ones is exactly 1, so v stays 1.
    plain = FedLADA(alpha=1, beta1=0, beta2=1, epsilon=1)
    assert same(after_rounds(plain, per_round=4), after_rounds(FedAvg(weighting=Uniform()), per_round=4))
    assert not same(
        after_rounds(FedLADA(alpha=1, beta1=0.5, beta2=1, epsilon=1)), after_rounds(FedAvg(weighting=Uniform()))
    )
