"""The stacked engine equals the sequential one: every method, every model, float64 within 1e-9 after two rounds."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedsat.algorithms import SGD, FedAvg, algorithms
from fedsat.data import Dataset
from fedsat.engine import SequentialEngine
from fedsat.engine.base import BaseEngine
from fedsat.engine.fold import FoldedConv2d, FoldedNetwork, fold
from fedsat.engine.kernels import without_second_derivative
from fedsat.engine.kernels.quick import QuickTanh, disjoint_means
from fedsat.engine.network import Aside, Factors
from fedsat.errors import TrainingError, UsageError
from fedsat.models import BatchNormRelu
from fedsat.options import Spec
from fedsat.rounds import lr_schedules, start
from tests.support.federations import furthest, image_dataset, make_engine, run_rounds, stacked, tiny_dataset


def assert_equal(algorithm: Spec, *, lanes: int | None, **options: Any) -> None:
    """Both engines on the same federation: models, server memory, client states and round records agree."""
    method = algorithms.build(algorithm)
    one, first = run_rounds(make_engine(method, **options), 2)
    many, second = run_rounds(make_engine(method, engine=stacked, lanes=lanes, **options), 2)
    assert furthest(one.server.model.params, many.server.model.params) < 1e-9
    assert furthest(one.server.model.buffers, many.server.model.buffers) < 1e-9
    for name, tree in one.server.memory.items():
        assert furthest(tree, many.server.memory[name]) < 1e-9
    assert one.states.keys() == many.states.keys()
    for client, state in one.states.items():
        assert state.keys() == many.states[client].keys()
        assert all(furthest(tree, many.states[client][name]) < 1e-9 for name, tree in state.items())
    for left, right in zip(first, second, strict=True):
        assert left.clients.tolist() == right.clients.tolist()
        torch.testing.assert_close(left.client_weights.weights, right.client_weights.weights, rtol=0, atol=1e-9)
        torch.testing.assert_close(left.losses, right.losses, rtol=0, atol=1e-5)
        assert left.traffic == right.traffic


MODELS: list[Any] = ["mlp", "lenet5", {"name": "resnet8", "width": 4}]
GROUP_NORM = {"name": "resnet8", "width": 4, "norm": "group"}
PAIRS = [(algorithm, model) for model in MODELS for algorithm in algorithms]
PAIRS += [(algorithm, GROUP_NORM) for algorithm in ("fedavg", "fedsam", "fedsat", "moon")]  # no method sees the norm


@pytest.mark.parametrize(("algorithm", "model"), PAIRS, ids=str)
def test_every_method_and_model(algorithm: str, model: Any) -> None:
    assert_equal(
        algorithm,
        lanes=3,
        model=model,
        dataset=image_dataset(),
        partition={"name": "lqsmc", "classes_per_client": 2},
        clients=9,
        epochs=1,
        batch_size=5,
        lr=0.05,
    )


OPTIMIZERS: dict[str, dict[str, Any]] = {
    "momentum": {"momentum": 0.8},
    "nesterov": {"momentum": 0.8, "nesterov": True},
    "decay": {"weight_decay": 0.1},
    "clip": {"clip": 0.3},
}


ACCEPTED = [
    pytest.param(algorithm, options, id=f"{algorithm}-{name}")
    for algorithm in algorithms
    for name, options in OPTIMIZERS.items()
    if not options.keys() & algorithms.build(algorithm).refuses.keys()
]


@pytest.mark.parametrize(("algorithm", "options"), ACCEPTED)
def test_every_method_and_optimizer(algorithm: str, options: dict[str, Any]) -> None:
    # Five clients of 1 to 9 samples in batches of 4, so that some are partial.
    dataset, partition = tiny_dataset(24), {"name": "quantity", "beta": 1.0}
    local = {"optimizer": SGD(**options)}
    assert_equal(algorithm, lanes=2, dataset=dataset, partition=partition, epochs=1, local=local)


@pytest.mark.parametrize("batch_size", [4, "all"])
@pytest.mark.parametrize("steps", [None, 5])
@pytest.mark.parametrize("algorithm", ["fedsat", "elastic"])
def test_steps_and_whole_batches(algorithm: str, steps: int | None, batch_size: Any) -> None:
    schedule = lr_schedules.build({"name": "cosine", "warmup": 1})
    local = {"steps": steps, "lr_schedule": schedule, "rounds": 4, "optimizer": SGD(momentum=0.5)}
    partition = {"name": "quantity", "beta": 0.5}
    assert_equal(algorithm, lanes=2, partition=partition, clients=9, batch_size=batch_size, local=local)


def test_augmentation_with_steps() -> None:
    options: dict[str, Any] = {"model": "lenet5", "dataset": image_dataset(), "augment": True, "local": {"steps": 3}}
    assert_equal("fedavg", lanes=3, partition="ls", clients=9, **options)


@pytest.mark.parametrize("algorithm", ["fedsat", "fedsat:paper", "fedsat:robust"])
def test_validation_samples(algorithm: str) -> None:
    partition = {"name": "quantity", "beta": 0.5}  # some clients are too small to have any
    assert_equal(algorithm, lanes=2, validation=0.3, partition=partition, clients=12, batch_size=7)


@pytest.mark.parametrize("options", [{}, {"distilled": "others", "temperature": 3.0}], ids=["missing", "others"])
def test_distillation_in_fedsats_loss(options: dict[str, Any]) -> None:
    partition = {"name": "lsmc", "classes_per_client": 2}
    spec = {"name": "fedsat", "objective": {"name": "psl-distilled", **options}}
    assert_equal(spec, lanes=2, partition=partition, clients=9)


def test_alpha_scaled_by_size() -> None:
    spec = {"name": "feddyn", "alpha": 0.1, "scale_by_size": True}
    assert_equal(spec, lanes=2, partition={"name": "quantity", "beta": 1.0}, clients=12)


@pytest.mark.parametrize("lanes", [1, 2, None])
@pytest.mark.parametrize("algorithm", ["fedsat", "scaffold"])
def test_any_number_of_lanes(algorithm: str, lanes: int | None) -> None:
    assert_equal(algorithm, lanes=lanes, partition={"name": "quantity", "beta": 0.3}, clients=12, batch_size=7)


def test_clients_smaller_than_a_batch_and_of_one_sample() -> None:
    # 90 samples over 40 clients: one to three each, so most of a batch of 8 is padding.
    assert_equal("fedsat", lanes=None, partition={"name": "quantity", "beta": 1.0}, clients=40, batch_size=8)
    model = {"name": "resnet8", "width": 4}
    partition = {"name": "quantity", "beta": 0.5}
    assert_equal("fedavg", lanes=2, partition=partition, clients=40, batch_size=8, model=model, dataset=image_dataset())


@pytest.mark.parametrize("algorithm", ["fedsat", "moon"])
def test_a_table(algorithm: str) -> None:
    rng, rows = np.random.default_rng(2), 120
    age, ward = rng.normal(60, 10, rows), np.array(["a", "b", "c"])[rng.integers(0, 3, rows)]
    frame = pytest.importorskip("pandas").DataFrame({"age": age, "ward": ward, "outcome": np.arange(rows) % 2})
    pytest.importorskip("pyarrow")
    dataset = Dataset.from_table(frame, label="outcome")
    assert_equal(algorithm, lanes=3, model="tabular", dataset=dataset, partition="quantity", clients=6, lr=0.05)


def test_augmentation() -> None:
    assert_equal("fedavg", lanes=3, partition="ls", clients=9, model="lenet5", dataset=image_dataset(), augment=True)


def test_resnet18() -> None:
    model = {"name": "resnet18", "width": 2}
    assert_equal("fedavg", lanes=3, partition="ls", clients=9, epochs=1, model=model, dataset=image_dataset())


def test_not_finite_names_the_client() -> None:
    one, many = (make_engine(algorithms.build("fedavg"), lr=1e200, engine=kind) for kind in (SequentialEngine, stacked))
    messages = []
    for engine in (one, many):
        with pytest.raises(TrainingError) as error:
            run_rounds(engine, 1)
        messages.append(str(error.value))
    assert messages[0] == messages[1]


class Rough(nn.Module):
    """A network that is difficult for gradients as factors: in-place activations, a first layer without bias, a layer
    that is used twice, frozen parts."""

    def __init__(self, input_shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.first = nn.Linear(input_shape[0], 6, bias=False)
        self.twice = nn.Linear(6, 6)
        self.frozen = nn.Linear(6, 6).requires_grad_(False)
        self.half_frozen = nn.Linear(6, 6)
        self.half_frozen.bias.requires_grad_(False)
        self.last = nn.Linear(6, classes)
        self.activation = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        x = self.activation(self.first(x))
        x = self.activation(self.twice(self.activation(self.twice(x))))
        logits: Tensor = self.last(self.activation(self.half_frozen(self.activation(self.frozen(x)))))
        return logits


@pytest.mark.parametrize("algorithm", ["fedavg", "fedprox", "fedlada"])
def test_gradients_left_as_factors(algorithm: str) -> None:
    assert_equal(algorithm, lanes=3, model=f"{__name__}:Rough", partition="ls", clients=9, batch_size=4)


def test_factors_are_freed_after_a_step() -> None:
    module = nn.Sequential(nn.Conv1d(1, 2, 1), nn.Flatten(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)).double()
    params = {name: tensor.detach()[None].requires_grad_() for name, tensor in module.named_parameters()}
    factors: list[Factors] = []
    network = FoldedNetwork(module, features=False)
    logits = network.train(params, {}, torch.ones(1, 4, 1, 3, dtype=torch.float64), None, factors).logits
    torch.autograd.grad(logits.sum(), list(params.values()), allow_unused=True)
    columns = [weakref.ref(one.columns) for one in factors]
    del logits, factors
    assert [one() for one in columns] == [None, None]


class FrozenNorms(nn.Module):
    """Keeps its norms in evaluation mode, as is common with pretrained networks."""

    def __init__(self, input_shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(input_shape[0], 3, 3), nn.BatchNorm2d(3), nn.Conv2d(3, 4, 3), BatchNormRelu(4), nn.Flatten()
        )
        self.layer = nn.Linear(4 * (input_shape[1] - 4) * (input_shape[2] - 4), classes)

    def train(self, mode: bool = True) -> FrozenNorms:
        super().train(mode)
        for layer in self.modules():
            if isinstance(layer, nn.BatchNorm2d):
                layer.eval()
        return self

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.layer(self.features(x))
        return logits


def test_frozen_norms_stay_frozen() -> None:
    options: dict[str, Any] = {"model": f"{__name__}:FrozenNorms", "dataset": image_dataset(), "epochs": 1}
    assert_equal("fedavg", lanes=3, partition="ls", clients=9, **options)
    trained, _ = run_rounds(make_engine(FedAvg(), engine=stacked, **options), 1)
    assert trained.server.model.buffers["features.1.running_mean"].abs().max() == 0


class Patches(nn.Module):
    """Moves parts of its images into the batch axis before a norm."""

    def __init__(self, input_shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(input_shape[0])
        self.layer = nn.Linear(input_shape[0], classes)

    def forward(self, x: Tensor) -> Tensor:
        patches = self.norm(torch.cat(x.chunk(2, dim=2)))
        logits: Tensor = self.layer(sum(patches.mean((2, 3)).chunk(2)))
        return logits


def test_a_norm_that_cannot_leave_padding_out_says_so() -> None:
    options: dict[str, Any] = {"model": f"{__name__}:Patches", "dataset": image_dataset(), "batch_size": 7}
    with pytest.raises(UsageError, match=r"7 samples has size 14 .*--engine sequential"):
        run_rounds(make_engine(FedAvg(), engine=stacked, **options), 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_quick_tanh_is_tanh(dtype: torch.dtype) -> None:
    x = torch.linspace(-20, 20, 20001, dtype=dtype).requires_grad_()
    quick, plain = QuickTanh()(x), torch.tanh(x)
    near = 4 * torch.finfo(torch.float32 if dtype == torch.bfloat16 else dtype).eps
    torch.testing.assert_close(quick, plain, rtol=0, atol=near)
    slopes = [torch.autograd.grad(y.sum(), x)[0] for y in (quick, plain)]
    torch.testing.assert_close(*slopes, rtol=0, atol=4 * near)


@pytest.mark.parametrize(("side", "height", "width"), [(2, 6, 4), (3, 7, 11), (2, 5, 2)])
@pytest.mark.parametrize("order", [torch.channels_last, torch.contiguous_format], ids=str)
def test_quick_pooling_is_pooling(side: int, height: int, width: int, order: torch.memory_format) -> None:
    x = torch.randn(3, 4, height, width, dtype=torch.float64).contiguous(memory_format=order).requires_grad_()
    quick, plain = disjoint_means(x, side), torch.nn.functional.avg_pool2d(x, side)
    assert torch.equal(quick, plain)
    pull = torch.randn(plain.shape, dtype=torch.float64)
    slopes = [torch.autograd.grad(y, x, pull, retain_graph=True)[0] for y in (quick, plain)]
    torch.testing.assert_close(*slopes, rtol=1e-14, atol=0)
    assert slopes[0].stride() == x.stride()
    bent = [torch.autograd.grad(y.square().sum(), x, create_graph=True)[0] for y in (quick, plain)]
    curvatures = [torch.autograd.grad(slope.square().sum(), x)[0] for slope in bent]
    torch.testing.assert_close(*curvatures, rtol=1e-14, atol=0)


class Doubled(torch.autograd.Function):
    """Computes 2x, like a kernel."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        del ctx
        return 2 * x

    @staticmethod
    @without_second_derivative
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        del ctx
        return 2 * grad


def test_kernels_without_second_derivatives_say_so() -> None:
    x = torch.ones(3, requires_grad=True)
    out = Doubled.apply(x).square().sum()  # type: ignore[no-untyped-call]
    assert torch.autograd.grad(out, x, retain_graph=True)[0].tolist() == [8, 8, 8]
    with pytest.raises(UsageError, match="--engine sequential"):
        torch.autograd.grad(out, x, create_graph=True)


@pytest.mark.parametrize(
    ("layers", "planes"),
    [
        ([nn.Conv2d(1, 6, 5, padding=2), nn.Tanh(), nn.Conv2d(6, 16, 5)], [True, True]),
        ([nn.Conv2d(1, 6, 5, padding=3), nn.Conv2d(6, 17, 3)], [False, False]),
        ([nn.Conv2d(3, 8, 7), nn.Conv2d(8, 8, 3, stride=2), nn.Conv2d(8, 8, 3, padding="same")], [False] * 3),
        ([nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.Conv2d(8, 32, 3)], [True, False]),
        ([nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)], [False]),
    ],
)
def test_which_convolutions_go_by_planes(layers: list[nn.Module], planes: list[bool]) -> None:
    folded = fold(nn.Sequential(*layers), Aside(), torch.channels_last, training=True)
    assert [layer.planes for layer in folded.modules() if isinstance(layer, FoldedConv2d)] == planes


def test_workers_evaluate_side_by_side_as_one_after_another(monkeypatch: pytest.MonkeyPatch) -> None:
    # 20 models, 16 of them at once with two samples each; unequal nodes, so that models end at different batches.
    monkeypatch.setattr("fedsat.engine.evaluate.SAMPLES", 2)
    options: dict[str, Any] = {"dataset": image_dataset(), "model": "lenet5", "clients": 20}
    engine = make_engine(FedAvg(), engine=stacked, partition={"name": "quantity", "beta": 0.3}, **options)
    trained = engine.train(start(engine).server, np.arange(20), {}, 1)
    workers = np.stack([np.random.default_rng(client).permutation(20)[:3] for client in range(20)])
    engine.train_counter.batch = 32
    together, alone = (
        engine.evaluate_workers(trained.updates, workers),
        BaseEngine.evaluate_workers(engine, trained.updates, workers),
    )
    assert torch.equal(together.predicted, alone.predicted)
    assert torch.equal(together.correct, alone.correct)
    assert torch.equal(together.labels, alone.labels)


class Tied(nn.Module):
    """Two names for one weight."""

    def __init__(self, input_shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.first, self.hidden, self.last = nn.Linear(input_shape[0], 5), nn.Linear(5, 5), nn.Linear(5, classes)
        self.again = nn.Linear(5, 5)
        self.again.weight = self.hidden.weight

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.last(self.again(torch.relu(self.hidden(self.first(x)))))
        return logits


def test_tied_weights() -> None:
    assert_equal("fedavg", lanes=2, model=f"{__name__}:Tied", partition="ls", clients=9)
