"""The stacked engine on a GPU: graphs equal the sequential engine, Triton's convolutions equal torch's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from test_stacked import CALLS, image_dataset, play

from federations import furthest
from fedsat.algorithms import Model, algorithms, combinations
from fedsat.data import Federation
from fedsat.engine import Adversity, LocalTraining, SequentialEngine, StackedEngine, attacks, play_round, start
from fedsat.engine.fold import FoldedNetwork
from fedsat.models import build_model
from fedsat.tree import expand

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def engine(kind: str, algorithm: Any, model: Any, lanes: int | None = 3) -> Any:
    dataset = image_dataset()
    federation = Federation.build(dataset, {"name": "lqsmc", "classes_per_client": 2}, 9, 3)
    module, method = build_model(model, dataset.input_shape, dataset.classes, 3), algorithms.build(algorithm)
    parts = (module, federation, method, LocalTraining(1, 5, 0.05, True, 3), torch.device("cuda"), torch.float64)
    if kind == "sequential":
        return SequentialEngine(*parts)
    return StackedEngine(FoldedNetwork(module, method.uses_features), *parts, lanes=lanes)


@pytest.mark.parametrize("algorithm", list(algorithms))
@pytest.mark.parametrize("model", ["mlp", "lenet5", {"name": "resnet8", "width": 4}], ids=str)
def test_graphs_equal_the_sequential_engine(algorithm: str, model: Any) -> None:
    one, _ = play(engine("sequential", algorithm, model), 2)
    many, _ = play(engine("stacked", algorithm, model), 2)
    assert furthest(one.server.model.params, many.server.model.params) < 1e-9
    assert furthest(one.server.model.buffers, many.server.model.buffers) < 1e-9


@pytest.mark.parametrize("attack", list(attacks))
@pytest.mark.parametrize("combination", list(combinations))
def test_adversity_is_the_same_on_a_gpu(attack: str, combination: str) -> None:
    adversity = Adversity(0.3, 20.0, attacks.build(attack), np.array([0, 4, 7]))
    method = {"name": "fedsat-robust", "combination": combination}
    trained = []
    for kind in ("sequential", "stacked"):
        made = engine(kind, method, "mlp")
        training = start(made)
        for _ in range(3):
            play_round(made, training, CALLS, adversity)
        trained.append(training.server.model.params)
    assert furthest(*trained) < 1e-9


@pytest.mark.parametrize(
    ("inputs", "outputs", "kernel", "stride", "padding", "side"),
    [(3, 20, 3, 1, 1, 9), (64, 64, 3, 1, 1, 8), (16, 130, 3, 2, 1, 11), (20, 17, 1, 2, 0, 7)],
)
@pytest.mark.parametrize("clients", [1, 5])
@pytest.mark.parametrize(("kind", "tolerance"), [(torch.bfloat16, 1e-2), (torch.float32, 1e-6)], ids=str)
def test_triton_equals_torch(
    kind: torch.dtype,
    tolerance: float,
    clients: int,
    inputs: int,
    outputs: int,
    kernel: int,
    stride: int,
    padding: int,
    side: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from fedsat.engine.triton_conv import StackedConvolution  # noqa: PLC0415 (needs Triton)

    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    draw = torch.Generator("cuda").manual_seed(0)
    options = {"device": "cuda", "generator": draw}
    x = torch.randn(4, clients * inputs, side, side, **options).to(kind).requires_grad_()
    weight = (0.1 * torch.randn(clients, outputs, inputs, kernel, kernel, **options)).requires_grad_()
    ours = StackedConvolution.apply(x, weight, stride, padding, kind)
    exact = (x.double(), weight.to(kind).double())
    wanted = torch.nn.functional.conv2d(exact[0], exact[1].flatten(0, 1), None, stride, padding, 1, clients)
    pull = torch.randn(wanted.shape, **options).to(kind)
    pairs = zip(
        (ours, *torch.autograd.grad(ours, (x, weight), pull)),
        (wanted, *torch.autograd.grad(wanted, (x, weight), pull.double())),
        strict=True,
    )
    for left, right in pairs:
        assert float((left.detach().double() - right.detach().double()).norm() / right.detach().norm()) < tolerance


def test_running_out_of_memory_halves_the_lanes(monkeypatch: pytest.MonkeyPatch) -> None:
    made = engine("stacked", "fedavg", "mlp", lanes=4)
    begin, failures = algorithms.entry("fedavg").part.begin, [0]

    def short_of_memory(self: Any, task: Any) -> Any:
        if len(task.class_counts) > 2:
            failures[0] += 1
            raise torch.cuda.OutOfMemoryError("no room")
        return begin(self, task)

    monkeypatch.setattr(algorithms.entry("fedavg").part, "begin", short_of_memory)
    play_round(made, start(made), CALLS)
    assert failures == [1]
    assert made.lanes == 2


@pytest.mark.parametrize("model", ["mlp", "lenet5", {"name": "resnet8", "width": 4}], ids=str)
def test_graphs_count_what_is_counted_without(model: Any) -> None:
    graphed, plain = engine("stacked", "fedsat", model), engine("sequential", "fedsat", model)
    for nodes in (np.array([0, 3]), np.arange(9), np.array([5])):  # more groups than before are recorded anew
        stacked = Model(expand(plain.initial_model.params, 1), expand(plain.initial_model.buffers, 1))
        assert torch.equal(graphed.count_by_node(stacked, nodes), plain.count_by_node(stacked, nodes))
    one, other = graphed.evaluate(plain.initial_model), plain.evaluate(plain.initial_model)
    assert (one.confusion == other.confusion).all()
    assert one.loss == pytest.approx(other.loss, abs=1e-12)
