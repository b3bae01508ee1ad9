"""The stacked engine on a GPU equals the sequential engine."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedsat.algorithms import SGD, Model, aggregators, algorithms
from fedsat.data import Federation
from fedsat.engine import SequentialEngine, StackedEngine, make_engine
from fedsat.engine.fold import FoldedNetwork
from fedsat.models import BatchNormRelu, build_model
from fedsat.rounds import Faults, LocalTraining, attacks, lr_schedules, run_round, start
from fedsat.tree import expand
from tests.support.federations import SAMPLING, furthest, image_dataset, run_rounds

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def engine(
    name: str,
    algorithm: Any,
    model: Any,
    lanes: int | None = 3,
    kind: torch.dtype = torch.float64,
    training: LocalTraining = LocalTraining(1, 5, 0.05, True, 3),  # noqa: B008 (frozen)
) -> Any:
    dataset = image_dataset()
    federation = Federation.build(dataset, {"name": "lqsmc", "classes_per_client": 2}, 9, 3)
    module, method = build_model(model, dataset.input_shape, dataset.classes, 3), algorithms.build(algorithm)
    parts = (module, federation, method, training, torch.device("cuda"), kind)
    if name == "sequential":
        return SequentialEngine(*parts)
    return StackedEngine(FoldedNetwork(module, method.uses_features), *parts, lanes=lanes)


@pytest.mark.parametrize("algorithm", list(algorithms))
@pytest.mark.parametrize("model", ["mlp", "lenet5", {"name": "resnet8", "width": 4}], ids=str)
def test_graphs_equal_the_sequential_engine(algorithm: str, model: Any) -> None:
    one, _ = run_rounds(engine("sequential", algorithm, model), 2)
    many, _ = run_rounds(engine("stacked", algorithm, model), 2)
    assert furthest(one.server.model.params, many.server.model.params) < 1e-9
    assert furthest(one.server.model.buffers, many.server.model.buffers) < 1e-9


@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold", "fedsat", "fedlada"])
def test_graphs_take_the_rate_of_the_round(algorithm: str) -> None:
    # Rates 0.025, 0.05, 0.05, 0.005: with one rate for two rounds and another before and after.
    schedule = lr_schedules.build({"name": "step", "decay": 0.1, "every": 2, "warmup": 1})
    training = LocalTraining(1, 5, 0.05, True, 3, lr_schedule=schedule)
    one, _ = run_rounds(engine("sequential", algorithm, "mlp", training=training), 4)
    many, rounds = run_rounds(engine("stacked", algorithm, "mlp", training=training), 4)
    assert [result.lr for result in rounds] == pytest.approx([0.025, 0.05, 0.05, 0.005])
    assert furthest(one.server.model.params, many.server.model.params) < 1e-9


@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold", "feddyn", "fedsat"])
@pytest.mark.parametrize("model", ["mlp", {"name": "resnet8", "width": 4}], ids=str)
def test_graphs_carry_the_velocity(algorithm: str, model: Any) -> None:
    optimizer = SGD(momentum=0.8, nesterov=True, weight_decay=0.01, clip=1.0)
    training = LocalTraining(1, "all", 0.05, True, 3, steps=7, optimizer=optimizer)
    one, _ = run_rounds(engine("sequential", algorithm, model, training=training), 2)
    many, _ = run_rounds(engine("stacked", algorithm, model, training=training), 2)
    assert furthest(one.server.model.params, many.server.model.params) < 1e-9


@pytest.mark.parametrize("attack", list(attacks))
@pytest.mark.parametrize("aggregator", list(aggregators))
def test_faults_are_the_same_on_a_gpu(attack: str, aggregator: str) -> None:
    faults = Faults(0.3, 20.0, attacks.build(attack), np.array([0, 4, 7]))
    method = {"name": "fedsat:robust", "aggregator": aggregator}
    trained = []
    for kind in ("sequential", "stacked"):
        made = engine(kind, method, "mlp")
        training = start(made)
        for _ in range(3):
            run_round(made, training, SAMPLING, faults)
        trained.append(training.server.model.params)
    assert furthest(*trained) < 1e-9


@pytest.mark.parametrize("model", [{"name": "resnet8", "width": 4}, "lenet5"], ids=str)
@pytest.mark.parametrize("algorithm", ["fedavg", "fedsat"])
def test_our_kernels_train_what_the_sequential_engine_trains(
    algorithm: str, model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    one, _ = run_rounds(engine("sequential", algorithm, model, kind=torch.float32), 1)
    many, _ = run_rounds(engine("stacked", algorithm, model, kind=torch.float32), 1)
    assert furthest(one.server.model.params, many.server.model.params) < 1e-4
    if one.server.model.buffers:
        assert furthest(one.server.model.buffers, many.server.model.buffers) < 1e-4


class Viewing(nn.Module):
    """Uses `view` on the output of its norm, which must therefore be contiguous."""

    def __init__(self, input_shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(input_shape[0], 4, 3), BatchNormRelu(4), nn.MaxPool2d(2))
        self.layer = nn.Linear(4 * ((input_shape[1] - 2) // 2) ** 2, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.features(x)
        logits: Tensor = self.layer(x.view(x.size(0), -1))
        return logits


def test_a_module_may_view_images() -> None:
    dataset = image_dataset()
    federation = Federation.build(dataset, {"name": "lqsmc", "classes_per_client": 2}, 9, 3)
    module, method = Viewing(dataset.input_shape, dataset.classes), algorithms.build("fedsat")
    training = LocalTraining(1, 5, 0.05, False, 3)
    made, why = make_engine("stacked", module, federation, method, training, torch.device("cuda"), "bf16")
    assert not why
    run_rounds(made, 2)


def test_running_out_of_memory_halves_the_lanes(monkeypatch: pytest.MonkeyPatch) -> None:
    made = engine("stacked", "fedavg", "mlp", lanes=4)
    begin, failures = algorithms.entry("fedavg").part.begin, [0]

    def short_of_memory(self: Any, task: Any) -> Any:
        if len(task.class_counts) > 2:
            failures[0] += 1
            raise torch.cuda.OutOfMemoryError("no room")
        return begin(self, task)

    monkeypatch.setattr(algorithms.entry("fedavg").part, "begin", short_of_memory)
    run_round(made, start(made), SAMPLING)
    assert failures == [1]
    assert made.lanes == 2


@pytest.mark.parametrize("model", ["mlp", "lenet5", {"name": "resnet8", "width": 4}], ids=str)
def test_graphs_count_what_is_counted_without(model: Any) -> None:
    graphed, plain = engine("stacked", "fedsat", model), engine("sequential", "fedsat", model)
    for nodes in (np.array([0, 3]), np.arange(9), np.array([5])):  # more groups than before are captured again
        stacked = Model(expand(plain.initial_model.params, 1), expand(plain.initial_model.buffers, 1))
        held = [plain.federation.indices(node) for node in nodes.tolist()]
        assert torch.equal(graphed.count_by_node(stacked, held), plain.count_by_node(stacked, held))
    assert int(graphed.count_by_node(stacked, [np.empty(0, np.int64)]).sum()) == 0  # a worker without samples
    one, other = graphed.test(plain.initial_model), plain.test(plain.initial_model)
    assert (one.confusion == other.confusion).all()
    assert one.loss == pytest.approx(other.loss, abs=1e-12)
