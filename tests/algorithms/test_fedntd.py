"""FedNTD's distillation worked out by hand, against torch's KL divergence, and the special cases that equal FedAvg."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional

from fedsat.algorithms import FedAvg, FedNTD, NotTrueDistillation, Outputs, Scaffold
from tests.support.byhand import after_rounds, make_batch, same
from tests.support.federations import make_engine


def test_loss_by_hand() -> None:
    # τ = 2, β = 3, y = 1. Ours f = (2 log 3, 5, 0): without the true class, divided by τ: (log 3, 0), p̃ = (¾, ¼).
    # Received (0, −7, 2 log 3): p̃ = (¼, ¾). KL = ¼ log(⅓) + ¾ log 3 = ½ log 3. The term is 3·4·½ log 3 = 6 log 3.
    f = torch.tensor([[[2 * math.log(3), 5, 0]]], dtype=torch.float64, requires_grad=True)
    received = torch.tensor([[[0, -7, 2 * math.log(3)]]], dtype=torch.float64)
    objective = NotTrueDistillation(beta=3, tau=2)
    loss, carry = objective.loss({}, Outputs(f, received=received), make_batch([[[0.0]]], [[1]]))
    ce = -math.log(math.exp(5) / (9 + math.exp(5) + 1))
    assert loss.item() == pytest.approx(ce + 6 * math.log(3))
    assert carry == {}
    # The gradient of the term by f is β τ (p̃ − p̃_glob) for the other classes, 0 for the true one.
    (grad,) = torch.autograd.grad(loss.sum(), f)
    plain = torch.softmax(f.detach(), -1) - torch.tensor([0, 1, 0])
    assert (grad - plain).flatten().tolist() == pytest.approx([6 * 0.5, 0, -6 * 0.5])


def test_torch_computes_the_same() -> None:
    generator = torch.Generator().manual_seed(1)
    ours, received = torch.randn(2, 2, 5, 4, dtype=torch.float64, generator=generator)
    labels = torch.randint(4, (2, 5), generator=generator)
    loss, _ = NotTrueDistillation(beta=0.7, tau=1.5).loss(
        {}, Outputs(ours, received=received), make_batch([[0.0] * 5] * 2, labels.tolist())
    )
    for client in range(2):
        for place, label in enumerate(labels[client].tolist()):
            keep = [c for c in range(4) if c != label]
            student = functional.log_softmax(ours[client, place, keep] / 1.5, 0)
            teacher = functional.softmax(received[client, place, keep] / 1.5, 0)
            expected = functional.cross_entropy(ours[client, place], labels[client, place])
            expected += 0.7 * 1.5**2 * functional.kl_div(student, teacher, reduction="sum")
            assert loss[client, place].item() == pytest.approx(expected.item())


def test_the_received_model_teaches() -> None:
    """The engine passes the logits of the received model, so the first step has no distillation gradient."""
    one_step = {"epochs": 1, "batch_size": 90, "rounds": 1, "clients": 3, "partition": "iid"}
    left, right = (after_rounds(method, **one_step).params for method in (FedNTD(), FedAvg()))
    assert all(torch.allclose(left[name], right[name], rtol=0, atol=1e-12) for name in left)
    assert not same(after_rounds(FedNTD(), rounds=1), after_rounds(FedAvg(), rounds=1))


def test_beta_zero_and_two_classes_are_fedavg_bit_for_bit() -> None:
    assert same(after_rounds(FedNTD(objective=NotTrueDistillation(beta=0))), after_rounds(FedAvg()))
    # With two classes there is a single other class, whose probability is 1.
    f, received = torch.randn(2, 1, 3, 2, generator=torch.Generator().manual_seed(1))
    batch = make_batch([[[0.0]] * 3], [[0, 1, 1]])
    loss, _ = NotTrueDistillation().loss({}, Outputs(f, received=received), batch)
    assert torch.equal(loss[0], functional.cross_entropy(f[0], batch.y[0], reduction="none"))


def test_other_methods_accept_it() -> None:
    # Option I of SCAFFOLD evaluates the objective outside of training steps.
    for controls in ("I", "II"):
        method = Scaffold(objective=NotTrueDistillation(), controls=controls)  # type: ignore[arg-type]
        assert not same(after_rounds(method), after_rounds(Scaffold(controls=controls)))  # type: ignore[arg-type]


def test_other_objectives_get_no_second_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine(FedAvg())
    task = engine._task(engine.initial_model, {}, None, 0, 0.1)
    calls: list[int] = []
    monkeypatch.setattr(type(engine.network), "__call__", lambda *_: calls.append(1))
    engine._train_client(task, 0, 1)
    assert not calls
