"""Elastic aggregation by hand, and the special case that equals FedAvg."""

from __future__ import annotations

import pytest
import torch

from fedsat.algorithms import Elastic, FedAvg, LocalResult, Model, Outputs, Server
from fedsat.tree import Tree
from tests.support.byhand import after_rounds, make_batch, make_task, make_updates, same


def tree(weight: list[list[float]], bias: list[list[float]]) -> Tree:
    return {"weight": torch.tensor(weight).double(), "bias": torch.tensor(bias).double()}


START = Model({name: tensor[0] for name, tensor in tree([[2, 1]], [[0, 0]]).items()}, {})


def network(params: Tree, buffers: Tree, x: torch.Tensor) -> Outputs:
    """Two logits, w_j x_j + b_j."""
    return Outputs(params["weight"].unsqueeze(1) * x + params["bias"].unsqueeze(1))


def test_sensitivity_by_hand() -> None:
    # w = (2, 1), b = (0, 0); mean(F²) = ½ mean Σ_j (w_j x_j + b_j)², so its gradient is mean (w_j x_j + b_j)·(x_j, 1).
    # A, first batch (1, 1), (3, −1): by w mean(2, 18) = 10 and mean(1, 1) = 1; by b mean(2, 6) = 4 and mean(1, −1) = 0.
    #    second batch (1, 2), the rest padding: by w 2 and 4; by b 2 and 2.
    #    μ = ½: ω = (½·½·10 + ½·2)/(1 − ¼) = 3.5/0.75 = 14/3 and (0.25 + 2)/0.75 = 3;
    #    by b (1 + 1)/0.75 = 8/3 and 1/0.75 = 4/3.
    # B, one batch of one sample (−2, 0): by w 8 and 0; by b |−4| and 0; ω = ½·(8, 0)/(1 − ½): the same numbers.
    batches = [
        make_batch([[[1, 1], [3, -1]], [[-2, 0], [9, 9]]], [[0, 1], [0, 0]], [[True, True], [True, False]]),
        make_batch([[[1, 2], [5, 5]], [[7, 7], [7, 7]]], [[0, 0], [0, 0]], [[True, False], [False, False]]),
    ]
    method = Elastic(mu=0.5)
    given = make_task(2, start=START, network=network, examples=lambda: iter(batches))
    carry = method.begin(given)
    expected = tree([[14 / 3, 3], [8, 0]], [[8 / 3, 4 / 3], [4, 0]])
    state, upload = method.end(given, carry, LocalResult(tree([[0, 0]] * 2, [[0, 0]] * 2), {}, torch.tensor([2, 1])))
    assert state == {}
    for name, tensor in expected.items():
        torch.testing.assert_close(upload["sensitivity"][name], tensor)


def test_aggregation_by_hand() -> None:
    # Weights ¾, ¼ of the sensitivities above: Ω_w = (3.5 + 2, 2.25) = (5.5, 2.25), Ω_b = (2 + 1, 1) = (3, 1).
    # τ = ½: ζ_w = 1.5 − (1, 9/22) = (0.5, 12/11), ζ_b = 1.5 − (1, 1/3) = (0.5, 7/6).
    # A moves by (4, 4) and (8, 8), B by (−8, 0) and (0, −8): Δ_w = (3 − 2, 3) = (1, 3), Δ_b = (6, 6 − 2) = (6, 4).
    # Θ_w = (2 + 0.5, 1 + 36/11), Θ_b = (3, 14/3).
    uploads = {"sensitivity": tree([[14 / 3, 3], [8, 0]], [[8 / 3, 4 / 3], [4, 0]])}
    updates = make_updates(tree([[6, 5], [-6, 1]], [[8, 8], [0, -8]]), [2, 1], 0.1, uploads=uploads)
    after = Elastic(tau=0.5).aggregate(Server(START), updates, torch.tensor([0.75, 0.25]).double())
    assert after.model.params["weight"].tolist() == pytest.approx([2.5, 1 + 36 / 11])
    assert after.model.params["bias"].tolist() == pytest.approx([3, 14 / 3])


def test_a_tensor_on_which_nothing_depends_moves_as_in_fedavg() -> None:
    # Ω_b = 0: ζ_b = 1, Θ_b = Δ_b = (6, 4). Equal sensitivities: ζ_w = τ = 0.25, Θ_w = (2, 1) + 0.25·(1, 3).
    uploads = {"sensitivity": tree([[3, 3], [3, 3]], [[0, 0], [0, 0]])}
    updates = make_updates(tree([[6, 5], [-6, 1]], [[8, 8], [0, -8]]), [2, 1], 0.1, uploads=uploads)
    after = Elastic(tau=0.25).aggregate(Server(START), updates, torch.tensor([0.75, 0.25]).double())
    assert after.model.params["weight"].tolist() == [2.25, 1.75]
    assert after.model.params["bias"].tolist() == [6, 4]


def test_shares_of_one_are_fedavg_bit_for_bit() -> None:
    class Even(Elastic):
        """All parameters equally sensitive: ζ = τ."""

        def end(self, task, carry, result):  # type: ignore[no-untyped-def]
            state, upload = super().end(task, carry, result)
            return state, {"sensitivity": {name: torch.ones_like(t) for name, t in upload["sensitivity"].items()}}

    assert same(after_rounds(Even(tau=1)), after_rounds(FedAvg()))
    assert not same(after_rounds(Elastic(tau=1)), after_rounds(FedAvg()))
