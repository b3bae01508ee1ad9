"""The kernel of the prediction-sensitive loss equals the objective."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fedsat.algorithms import Batch, Outputs, PredictionSensitiveLoss, algorithms
from fedsat.engine.losses import QuickSensitiveLoss, quick
from fedsat.engine.native.loss import CompiledSensitiveLoss


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(("clients", "batch", "classes"), [(1, 1, 2), (3, 5, 10), (2, 16, 20)])
@pytest.mark.parametrize(
    "settings", [{}, {"tau": 0.0, "over": "all"}, {"source": "evaluation", "epsilon1": 0.5, "epsilon2": 2.0}], ids=str
)
def test_the_kernel_equals_the_objective(settings: dict[str, Any], clients: int, batch: int, classes: int) -> None:
    options = {"device": "cuda", "generator": torch.Generator("cuda").manual_seed(0)}
    logits = torch.randn(batch, clients, classes, **options).transpose(0, 1).requires_grad_()
    y = torch.randint(classes, (batch, clients), **options).t()
    real = torch.rand(clients, batch, **options) > 0.3
    mistakes = torch.randint(3, (clients, classes, classes), **options).float()
    carry = {"mistakes": mistakes}
    if settings.get("tau") != 0.0:
        carry["shift"] = torch.randn(clients, classes, **options).double()
    pull = torch.randn(clients, batch, **options)
    found = []
    for kind in (QuickSensitiveLoss, PredictionSensitiveLoss):
        losses, after = kind(**settings).loss(carry, Outputs(logits), Batch(y, y, real))
        found.append([losses, after["mistakes"], *torch.autograd.grad(losses, logits, pull)])
    assert all(torch.allclose(ours, wanted, rtol=1e-5, atol=1e-6) for ours, wanted in zip(*found, strict=True))
    assert torch.equal(found[0][1], found[1][1])
    assert torch.equal(carry["mistakes"], mistakes)


@pytest.mark.parametrize("form", [QuickSensitiveLoss, CompiledSensitiveLoss])
def test_only_the_objective_changes(form: type[PredictionSensitiveLoss]) -> None:
    method = algorithms.build({"name": "fedsat", "gamma": 0.5, "objective": {"name": "psl", "tau": 0.25}})
    faster = quick(method, form)
    assert type(faster) is type(method)
    assert faster.gamma == 0.5
    assert type(faster.objective) is form
    assert faster.objective.tau == 0.25
    assert type(method.objective) is PredictionSensitiveLoss
    other = algorithms.build("fedavg")
    assert quick(other, form) is other
