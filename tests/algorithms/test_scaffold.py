"""SCAFFOLD by hand, both options, and its invariant: c is the mean of all clients' c_k."""

from __future__ import annotations

import pytest
import torch

from fedsat.algorithms import LocalResult, Model, Outputs, Scaffold
from fedsat.rounds import Sampling, run_round, start
from fedsat.tree import Tree
from tests.support.byhand import Bowl, Bowls, make_batch, make_task, one, scalar, values
from tests.support.federations import make_engine


def test_two_rounds_by_hand_with_a_client_missing_in_each() -> None:
    # Three clients, η = 0.5; sizes differ but do not count. Round 1 samples A (b = 4, K = 2) and B (b = −4, K = 1).
    # A: 0 → 2 → 3, c_A = (0 − 3)/(0.5·2) = −3, the mean of its gradients −4 and −2.
    # B: 0 → −2, c_B = 2/(0.5·1) = 4. Θ = (3 − 2)/2 = 0.5; c = (−3 + 4)/3, over all three clients.
    bowls = Bowls(Scaffold(), [Bowl(4, K=2, n=9), Bowl(-4, K=1, n=1), Bowl(2, K=3, n=5)], lr=0.5)
    bowls.run_round(0, 1)
    assert bowls.theta == 0.5
    assert bowls.kept(0, "control") == -3
    assert bowls.kept(1, "control") == 4
    assert bowls.memory("control") == pytest.approx(1 / 3)
    # Round 2 samples B and C (b = 2, K = 3, c_C = 0).
    # B: gradient 4.5, corrected by c − c_B = −11/3 to 5/6: θ = 1/2 − 5/12 = 1/12.
    #    c_B = 4 − 1/3 + (5/12)/0.5 = 4.5, its raw gradient.
    # C, corrected by +1/3: −7/6, −7/12, −7/24 lead 1/2 → 13/12 → 11/8 → 73/48.
    #    c_C = 0 − 1/3 + (1/2 − 73/48)/1.5 = −73/72, the mean of −3/2, −11/12 and −5/8.
    # Θ = (1/12 + 73/48)/2 = 77/96; c = 1/3 + (4.5 − 4 − 73/72)/3 = 35/216.
    bowls.run_round(1, 2)
    assert bowls.theta == pytest.approx(77 / 96)
    assert bowls.kept(0, "control") == -3
    assert bowls.kept(1, "control") == pytest.approx(4.5)
    assert bowls.kept(2, "control") == pytest.approx(-73 / 72)
    assert bowls.memory("control") == pytest.approx(35 / 216)
    assert bowls.memory("control") == pytest.approx((-3 + 4.5 - 73 / 72) / 3)


def test_option_one_is_the_full_gradient_at_the_received_model() -> None:
    # Logits (0, w x) with w = 0: the gradient of a sample is (½ − y) x.
    # A: (x, y) = (1, 1), (3, 1) and, in a second batch, (1, 0): mean of −½, −3/2, ½ is −½.
    # B: (4, 0) only, the rest is padding, which must not count: 2.
    def network(params: Tree, buffers: Tree, x: torch.Tensor) -> Outputs:
        scores = params["w"].unsqueeze(1) * x
        return Outputs(torch.cat([torch.zeros_like(scores), scores], -1))

    batches = [
        make_batch([[[1.0], [3.0]], [[4.0], [7.0]]], [[1, 1], [0, 1]], [[True, True], [True, False]]),
        make_batch([[[1.0], [9.0]], [[8.0], [8.0]]], [[0, 1], [0, 0]], [[True, False], [False, False]]),
    ]
    given = make_task(
        2,
        start=Model(scalar(0), {}),
        received={"control": scalar(1)},
        state={"control": one(3, 5), "objective": {}},
        class_counts=torch.tensor([[1, 2], [1, 0]]),
        network=network,
        examples=lambda: iter(batches),
    )
    method = Scaffold(controls="I")
    carry = method.begin(given)
    assert values(carry["correction"]) == [-2, -4]
    state, upload = method.end(given, carry, LocalResult(one(7, 8), {}, torch.tensor([2, 1])))
    assert values(state["control"]) == pytest.approx([-0.5, 2])
    assert values(upload["control_change"]) == pytest.approx([-3.5, -3])


def test_the_controls_lead_to_the_mean_minimum_where_fedavg_drifts() -> None:
    # The mean of the losses has its minimum at the mean of the b, 2. Two clients of three take part, steps differ.
    bowls = Bowls(Scaffold(), [Bowl(9, K=3), Bowl(-4, K=1), Bowl(1, K=2)], lr=0.1)
    for number in range(600):
        bowls.run_round(*[[0, 1], [1, 2], [0, 2]][number % 3])
    assert bowls.theta == pytest.approx(2)
    assert [bowls.kept(client, "control") for client in range(3)] == pytest.approx([-7, 6, 1])


@pytest.mark.parametrize("controls", ["I", "II"])
@pytest.mark.parametrize("partition", ["ls", "lqsmc"])
def test_c_is_the_mean_of_all_controls_after_every_round(controls: str, partition: str) -> None:
    engine = make_engine(Scaffold(controls=controls), partition=partition, clients=7)  # type: ignore[arg-type]
    training = start(engine)
    assert len(set(engine.federation.sizes.tolist())) > 1
    seen = []
    for _ in range(4):
        run_round(engine, training, Sampling(per_round=3, workers=1, seed=3))
        seen.append(set(training.states))
        for name, control in training.server.memory["control"].items():
            mean = sum(state["control"][name][0] for state in training.states.values()) / 7
            torch.testing.assert_close(control, mean, rtol=0, atol=1e-13)
            assert bool(control.any())
    assert len(seen[0]) < len(seen[-1])
