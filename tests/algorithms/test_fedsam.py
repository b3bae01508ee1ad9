"""FedSAM worked out by hand, the special cases that equal FedAvg, and what the extra pass must not touch."""

from __future__ import annotations

import math

import pytest
import torch

from fedsat.algorithms import Algorithm, FedAvg, FedSAM, Moon, Uniform
from fedsat.rounds import Sampling, run_round, start
from fedsat.tree import Tree
from tests.support.byhand import Bowl, Bowls, after_rounds, make_task, same
from tests.support.federations import make_engine, stacked, tiny_dataset


def test_two_rounds_by_hand() -> None:
    # η = 0.5, ρ = 1, loss ½(θ − b)²: the gradient at θ ± 1 is θ − b ± 1, further from the minimum.
    # Round 1, Θ = 0. A (b = 4, two steps): −4 − 1, θ = 2.5; −1.5 − 1, θ = 3.75. B (b = −2, one step): 2 + 1, θ = −1.5.
    # Weights are uniform: Θ = (3.75 − 1.5)/2 = 1.125.
    bowls = Bowls(FedSAM(rho=1), [Bowl(4, K=2, n=1), Bowl(-2, K=1, n=3)], lr=0.5)
    bowls.run_round(0, 1)
    assert bowls.theta == 1.125
    # Round 2, B alone: 3.125 + 1, θ = 1.125 − 2.0625.
    bowls.run_round(1)
    assert bowls.theta == -0.9375


def test_the_perturbation_is_along_the_gradient_over_all_tensors_of_a_client() -> None:
    # A: gradient (3, 0) and 4, of norm 5: ρ = 2 gives (1.2, 0) and 1.6. B: gradient 0 stays 0.
    gradient = {"a": torch.tensor([[3.0, 0], [0, 0]]), "b": torch.tensor([[4.0], [0]])}
    found = FedSAM(rho=2).perturbation(make_task(2), {}, {}, lambda: gradient)
    assert found["a"].flatten().tolist() == pytest.approx([1.2, 0, 0, 0])
    assert found["b"].flatten().tolist() == pytest.approx([1.6, 0])


def test_rho_zero_is_fedavg() -> None:
    assert same(after_rounds(FedSAM(rho=0)), after_rounds(FedAvg(weighting=Uniform())))
    assert not same(after_rounds(FedSAM(rho=0.1)), after_rounds(FedAvg(weighting=Uniform())))


@pytest.mark.parametrize("kind", [None, stacked])
def test_one_pass_updates_batchnorm(kind: object) -> None:
    # With ρ = 0 both passes are at θ: if both updated the statistics, they would differ from FedAvg's.
    settings = {"dataset": tiny_dataset(40, (3, 8, 8)), "model": {"name": "resnet8", "width": 2}, "epochs": 1}
    if kind is not None:
        settings["engine"] = kind
    left, right = after_rounds(FedSAM(rho=0), **settings), after_rounds(FedAvg(weighting=Uniform()), **settings)
    assert all(torch.allclose(left.buffers[name], right.buffers[name], rtol=0, atol=1e-12) for name in right.buffers)


@pytest.mark.parametrize("kind", [None, stacked])
def test_a_step_in_the_engine_is_at_the_perturbed_point(kind: object) -> None:
    """One step on one batch against autograd written out, with the recorded loss that of θ + ε."""
    settings = {} if kind is None else {"engine": kind}
    engine = make_engine(FedSAM(rho=0.5), clients=1, epochs=1, batch_size=90, lr=0.1, **settings)
    training = start(engine)
    model = training.server.model
    batch = engine.batch(torch.arange(90).unsqueeze(0))

    def gradient(params: Tree) -> tuple[Tree, float]:
        leaves = {name: tensor.unsqueeze(0).clone().requires_grad_() for name, tensor in params.items()}
        logits = engine.network(leaves, model.buffers, batch.x).logits[0]
        loss = torch.nn.functional.cross_entropy(logits, batch.y[0])
        grads = torch.autograd.grad(loss, list(leaves.values()))
        return {name: grad[0] for name, grad in zip(leaves, grads, strict=True)}, loss.item()

    first, _ = gradient(model.params)
    length = math.sqrt(sum(float(grad.square().sum()) for grad in first.values()))
    second, loss = gradient({name: p + 0.5 * first[name] / length for name, p in model.params.items()})
    result = run_round(engine, training, Sampling(per_round=1, workers=1, seed=3))
    for name, tensor in training.server.model.params.items():
        torch.testing.assert_close(tensor, model.params[name] - 0.1 * second[name], rtol=0, atol=1e-12)
    assert float(result.losses[0]) == pytest.approx(loss, abs=1e-6)


@pytest.mark.parametrize("plain", [FedAvg(), Moon()])
def test_other_methods_take_the_gradient_where_they_are(plain: Algorithm) -> None:
    assert plain.perturbation(make_task(1), {}, {}, lambda: {}) is None
