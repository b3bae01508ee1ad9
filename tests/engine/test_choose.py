"""The choice of the engine: folded if the probe agrees, otherwise vmap, otherwise one client after another."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fedsat
from fedsat.algorithms import FedAvg, FedSat
from fedsat.data import Federation
from fedsat.engine import SequentialEngine, StackedEngine
from fedsat.engine import make_engine as choose_engine
from fedsat.engine.examples import Examples
from fedsat.engine.fold import FoldedNetwork
from fedsat.engine.graphs import hand_over
from fedsat.engine.network import ModuleNetwork
from fedsat.engine.vmapped import VmapNetwork
from fedsat.models import build_model
from fedsat.rounds import LocalTraining, Sampling, run_round, start
from fedsat.tree import expand
from tests.support.federations import make_engine, tiny_dataset


class Scaled(nn.Module):
    """Has its own parameter: cannot be folded, but vmap can map it."""

    def __init__(self, input_shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.layer = nn.Linear(input_shape[0], classes)
        self.scale = nn.Parameter(torch.ones(classes))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.layer(x) * self.scale
        return logits


class Mixing(nn.Module):
    """Computes a softmax over the channels, and folding would mix all clients in it; only the probe detects this."""

    def __init__(self, input_shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(input_shape[0], 7), nn.Linear(7, classes)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.second(torch.softmax(self.first(x), dim=1))
        return logits


class Branching(nn.Module):
    """Branches on values: neither folding nor vmap supports this."""

    def __init__(self, input_shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.layer = nn.Linear(input_shape[0], classes)
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.layer(x) * self.scale
        return logits if logits.sum().item() > 0 else 2 * logits


def choose(module: type[nn.Module], name: Any = "auto") -> tuple[Any, str]:
    dataset = tiny_dataset()
    federation = Federation.build(dataset, "ls", 6, 3)
    training = LocalTraining(2, 4, 0.1, False, 3)
    made = module(dataset.input_shape, dataset.classes)  # type: ignore[call-arg]
    return choose_engine(name, made, federation, FedSat(), training, torch.device("cpu"), "float64")


@pytest.mark.parametrize("module", [fedsat.models.MLP, fedsat.models.Tabular])
def test_usual_layers_fold(module: type[nn.Module]) -> None:
    engine, note = choose(module)
    assert isinstance(engine, StackedEngine)
    assert isinstance(engine.stacked, FoldedNetwork)
    assert note == ""


@pytest.mark.parametrize("module", [Scaled, Mixing])
def test_what_does_not_fold_runs_by_vmap_and_equals_the_sequential_engine(module: type[nn.Module]) -> None:
    engine, note = choose(module)
    assert isinstance(engine.stacked, VmapNetwork)
    assert "vmap" in note
    path = f"{__name__}:{module.__name__}"
    results = []
    for made in (make_engine(FedSat(), model=path), make_engine(FedSat(), model=path, engine=vmapped)):
        training = start(made)
        for _ in range(2):
            run_round(made, training, Sampling(3, 2, 3))
        results.append(training.server.model.params)
    for name, tensor in results[0].items():
        torch.testing.assert_close(tensor, results[1][name], rtol=0, atol=1e-9)


def vmapped(module: nn.Module, federation: Federation, *rest: Any) -> StackedEngine:
    return StackedEngine(VmapNetwork(module, False), module, federation, *rest)


def test_what_neither_can_do_runs_sequentially_and_says_so() -> None:
    engine, note = choose(Branching)
    assert isinstance(engine, SequentialEngine)
    assert note.startswith("clients train one after another")
    with pytest.raises(fedsat.UsageError, match="--engine sequential"):
        choose(Branching, "stacked")


def test_sequential_on_request() -> None:
    engine, note = choose(fedsat.models.MLP, "sequential")
    assert isinstance(engine, SequentialEngine)
    assert note == ""


def test_dropout_in_lanes_repeats() -> None:
    first, again = (
        fedsat.run(clients=20, per_round=4, rounds=2, epochs=1, model=f"{__name__}:Dropping", algorithm="fedavg")
        for _ in range(2)
    )
    assert first.records[-1].metrics["loss"] == again.records[-1].metrics["loss"]


class Dropping(nn.Module):
    """A user's network with dropout."""

    def __init__(self, input_shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        size = input_shape[0] * input_shape[1] * input_shape[2]
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(size, 8), nn.Dropout(0.5), nn.Linear(8, classes))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.layers(x)
        return logits


def test_bf16_stays_near_float32() -> None:
    runs = [
        fedsat.run(clients=20, per_round=4, rounds=3, epochs=1, lr=0.05, algorithm=FedAvg(), precision=precision)
        for precision in ("float32", "bf16")
    ]
    losses = [run.records[-1].metrics["loss"] for run in runs]
    assert losses[0] != losses[1]
    assert losses[0] == pytest.approx(losses[1], rel=0.02)


@pytest.mark.parametrize("model", ["mlp", "lenet5"])
def test_bf16_changes_few_predictions(model: str) -> None:
    run = fedsat.run(model=model, clients=20, per_round=5, rounds=4, epochs=1, lr=0.05, algorithm=FedAvg())
    dataset, trained = run.setup.engine.federation.dataset, run.training.server.model
    module = build_model(model, dataset.input_shape, dataset.classes, 0)
    x = Examples(dataset.test, dataset, torch.device("cpu"), torch.float32).inputs(torch.arange(1000))[None]
    weights = expand(trained.params, 1), expand(trained.buffers, 1)
    with torch.no_grad():
        exact, half = (ModuleNetwork(module, False, half)(*weights, x).logits for half in (False, True))
    assert not torch.equal(exact, half)
    assert int((exact.argmax(-1) != half.argmax(-1)).sum()) <= 10  # the 1 % of docs/measurements/engine.md


class Viewing(nn.Module):
    """Uses `view`, which does not accept channels-last images: is folded with contiguous images."""

    def __init__(self, input_shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(input_shape[0], 2, 3)
        self.layer = nn.Linear(2 * (input_shape[1] - 2) * (input_shape[2] - 2), classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        logits: Tensor = self.layer(x.view(x.size(0), -1))
        return logits


class Unused(nn.Module):
    """Has a layer that the forward pass does not use."""

    def __init__(self, input_shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.layer, self.spare = nn.Linear(input_shape[0], classes), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.layer(x)
        return logits


class Cumulative(nn.Module):
    """Uses BatchNorm with a cumulative average, which only torch's layer supports."""

    def __init__(self, input_shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.norm, self.layer = nn.BatchNorm1d(input_shape[0], momentum=None), nn.Linear(input_shape[0], classes)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.layer(self.norm(x))
        return logits


def test_view_folds() -> None:
    run = fedsat.prepare(fedsat.configure(clients=20, per_round=4, model=f"{__name__}:Viewing"))
    assert isinstance(run.setup.engine, StackedEngine)
    assert isinstance(run.setup.engine.stacked, FoldedNetwork)
    assert run.notes == []


@pytest.mark.parametrize("kind", [SequentialEngine, None])
def test_parameters_without_a_gradient_stay(kind: Any) -> None:
    engine = make_engine(FedSat(), model=f"{__name__}:Unused", engine=kind or folded)
    training = start(engine)
    run_round(engine, training, Sampling(3, 2, 3))
    assert torch.equal(training.server.model.params["spare.weight"], engine.initial_model.params["spare.weight"])


def folded(module: nn.Module, federation: Federation, *rest: Any) -> StackedEngine:
    return StackedEngine(FoldedNetwork(module, False), module, federation, *rest)


def test_cumulative_batchnorm_trains_sequentially() -> None:
    engine, note = choose(Cumulative)
    assert isinstance(engine, SequentialEngine)
    assert "cumulative" in note


class Late(FedAvg):
    """Returns a name that `begin` did not return."""

    def step(self, task: Any, carry: Any, params: Any, grads: Any) -> Any:
        return super().step(task, carry, params, grads)[0], {"last": grads}


def test_carry_keeps_its_names() -> None:
    engine = make_engine(Late(), engine=folded)
    with pytest.raises(fedsat.UsageError, match=r"Late.step returned the carry \['last'\], but it was given \[\]"):
        run_round(engine, start(engine), Sampling(3, 2, 3))


def test_hand_over_keeps_aliases_apart() -> None:
    # A method that keeps the parameters before the step: they share memory with the new ones.
    params, previous = torch.tensor([1.0]), torch.tensor([0.0])
    into = {"params": {"w": params}, "carry/previous": {"w": previous}}
    hand_over(into, {"params": {"w": params - 0.5}, "carry/previous": {"w": params}})
    assert (float(params), float(previous)) == (0.5, 1.0)
