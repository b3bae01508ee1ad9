"""Local training against plain PyTorch: torch's SGD, clipping and label smoothing, steps, and whole batches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedsat.algorithms import SGD, CrossEntropy, FedAvg, PredictionSensitiveLoss
from fedsat.engine import SequentialEngine
from fedsat.models import build_model
from fedsat.rounds import LocalTraining, start
from fedsat.rounds.sampling import batch_order
from tests.support.byhand import make_batch, make_task
from tests.support.federations import make_engine, stacked

OPTIONS: list[dict[str, Any]] = [
    {"momentum": 0.9},
    {"momentum": 0.9, "nesterov": True},
    {"weight_decay": 0.1},
    {"clip": 0.5},
    {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1, "clip": 0.5},
]


def with_torch(engine: SequentialEngine, options: dict[str, Any], batches: list[np.ndarray]) -> list[Tensor]:
    """Client 0's model after the given batches, with torch's optimizer."""
    dataset = engine.federation.dataset
    model = build_model("mlp", dataset.input_shape, dataset.classes, 3).double()
    clip = options.get("clip", 0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, **{k: v for k, v in options.items() if k != "clip"})
    for batch in batches:
        x = engine.train_examples.inputs(torch.from_numpy(batch))
        optimizer.zero_grad()
        functional.cross_entropy(model(x), torch.from_numpy(dataset.train.labels[batch])).backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
    return [p.detach() for p in model.parameters()]


def trained(engine: SequentialEngine) -> list[Tensor]:
    """Client 0's model after a round."""
    updates = engine.train(start(engine).server, np.array([0]), {}, 1).updates
    return [tensor[0] for tensor in updates.model.params.values()]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_the_sequential_engine_takes_the_steps_of_torch(options: dict[str, Any]) -> None:
    engine = make_engine(FedAvg(), local={"optimizer": SGD(**options)})
    held = engine.federation.indices(0)
    batches = [
        held[order[first : first + 4]]
        for order in batch_order(3, 1, 0, len(held), 2)
        for first in range(0, len(held), 4)
    ]
    for ours, theirs in zip(trained(engine), with_torch(engine, options, batches), strict=True):
        if "clip" in options:  # norms are summed in another order
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-14)
        else:
            assert torch.equal(ours, theirs)


def test_steps_go_through_the_samples_again_and_stop_within_an_epoch() -> None:
    # 18 samples in batches of 8 are three batches; seven steps are two epochs and the first batch of the third.
    engine = make_engine(FedAvg(), batch_size=8, local={"steps": 7})
    held = engine.federation.indices(0)
    assert len(held) == 18
    orders = batch_order(3, 1, 0, 18, 3)
    batches = [held[order[first : first + 8]] for order in orders for first in (0, 8, 16)][:7]
    assert [len(batch) for batch in batches] == [8, 8, 2, 8, 8, 2, 8]
    pairs = zip(trained(engine), with_torch(engine, {}, batches), strict=True)
    assert all(torch.equal(ours, theirs) for ours, theirs in pairs)


def test_a_whole_batch_is_a_step_of_gradient_descent() -> None:
    engine = make_engine(FedAvg(), batch_size="all", epochs=3)
    held = engine.federation.indices(0)
    for ours, theirs in zip(trained(engine), with_torch(engine, {}, [held] * 3), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-14)


@pytest.mark.parametrize("kind", [SequentialEngine, stacked])
@pytest.mark.parametrize(
    ("batch_size", "local", "taken"),
    [(4, {"steps": 3}, [3] * 9), ("all", {}, [2] * 9), ("all", {"steps": 5}, [5] * 9)],
)
def test_every_client_takes_the_same_number_of_steps(
    kind: Any, batch_size: Any, local: dict[str, Any], taken: list[int]
) -> None:
    engine = make_engine(
        FedAvg(),
        partition={"name": "quantity", "beta": 0.5},
        clients=9,
        batch_size=batch_size,
        local=local,
        engine=kind,
    )
    assert len(set(engine.federation.sizes.tolist())) > 1
    steps = engine.train(start(engine).server, np.arange(9), {}, 1).updates.steps
    assert steps.tolist() == taken


def test_stragglers_take_fewer_of_the_steps() -> None:
    training = LocalTraining(5, 4, 0.1, False, 3, stragglers=1.0, steps=7)
    work = [training.work_of(client, 1, 10) for client in range(30)]  # three batches in an epoch
    assert {steps for _, steps in work} == {1, 2, 3, 4, 5, 6}
    assert all(epochs == {1: 1, 2: 1, 3: 1, 4: 2, 5: 2, 6: 2}[steps] for epochs, steps in work)


def test_smoothed_labels_by_hand() -> None:
    # Logits log(1, 2, 1), y = 1: −log softmax = log 4, log 2, log 4. With ε = 0.3, q = (0.1, 0.8, 0.1).
    batch = make_batch([[[0.0]]], [[1]])
    logits = torch.tensor([[[1.0, 2.0, 1.0]]], dtype=torch.float64).log()
    task = make_task(1, class_counts=torch.ones(1, 3, dtype=torch.int64))
    expected = pytest.approx(0.8 * np.log(2) + 0.2 * np.log(4))
    for objective in (CrossEntropy(label_smoothing=0.3), PredictionSensitiveLoss(label_smoothing=0.3, tau=0)):
        carry = objective.begin(task, objective.initial_state(3))
        losses, _ = objective.loss(carry, task.network({}, {}, logits), batch)
        assert float(losses) == expected
