"""The sequential engine and the round: batches, buffers, workers' counts, traffic, and non-finite numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedsat.algorithms import Batch, FedAvg, FedSat, Outputs, Server, Task, Updates
from fedsat.algorithms.base import Algorithm
from fedsat.algorithms.weighting import Uniform
from fedsat.data import Dataset, Split
from fedsat.engine import SequentialEngine
from fedsat.engine.examples import crop_and_flip
from fedsat.errors import TrainingError
from fedsat.rounds import Sampling, run_round, start
from fedsat.tree import State, expand, nbytes
from tests.support.federations import make_engine, stacked, tiny_dataset

SAMPLING = Sampling(per_round=3, workers=2, seed=3)


def test_partial_batches_are_real() -> None:
    # 90 samples over 5 clients: 18 each, batches of 4: 4 full ones and one of 2, twice.
    engine = make_engine(FedAvg())
    sizes = [batch.y.shape[1] for batch in engine._batches(0, 1)]
    assert sizes == [4, 4, 4, 4, 2] * 2
    training = start(engine)
    trained = engine.train(training.server, np.array([0, 2]), {}, 1)
    assert trained.updates.steps.tolist() == [10, 10]
    assert trained.updates.sizes.tolist() == [18, 18]


def test_a_client_smaller_than_a_batch() -> None:
    engine = make_engine(FedSat(), clients=45, batch_size=16)
    training = start(engine)
    run_round(engine, training, SAMPLING)
    assert all(bool(torch.isfinite(tensor).all()) for tensor in training.server.model.params.values())


def test_client_states_are_kept_for_participants_only() -> None:
    engine = make_engine(FedSat(), clients=20)
    training = start(engine)
    results = [run_round(engine, training, SAMPLING) for _ in range(2)]
    assert set(training.states) == {int(k) for one in results for k in one.clients}


def test_workers_counts_are_those_of_the_clients_models() -> None:
    engine = make_engine(FedAvg(), partition="ls")
    training = start(engine)
    updates = engine.train(training.server, np.array([1, 4]), {}, 1).updates
    counts = engine.evaluate_workers(updates, np.array([[1, 0], [4, 2]]))
    for row, client in enumerate((1, 4)):
        for column, node in enumerate((client, (0, 2)[row])):
            held = torch.from_numpy(engine.federation.indices(node))
            labels = engine.train_examples.labels[held]
            own = {name: tensor[row : row + 1] for name, tensor in updates.model.params.items()}
            guess = engine.network(own, {}, engine.train_examples.inputs(held)[None]).logits[0].argmax(-1)
            assert counts.labels[row, column].tolist() == torch.bincount(labels, minlength=3).tolist()
            assert counts.predicted[row, column].tolist() == torch.bincount(guess, minlength=3).tolist()
            right = torch.bincount(labels[guess == labels], minlength=3)
            assert counts.correct[row, column].tolist() == right.tolist()


@pytest.mark.parametrize("kind", [SequentialEngine, stacked])
def test_workers_count_on_their_validation_samples(kind: Any) -> None:
    # 90 samples over 5 clients: 18 each, and 0.2 of them is 3.6, rounded to 4.
    engine = make_engine(FedSat(), validation=0.2, engine=kind)
    training = start(engine)
    result = run_round(engine, training, SAMPLING)
    assert result.missing == ()
    updates = engine.train(training.server, np.array([1, 4]), {}, 2).updates
    assert updates.sizes.tolist() == [14, 14]
    assert updates.steps.tolist() == [8, 8]
    counts = engine.evaluate_workers(updates, np.array([[1, 0], [4, 2]]))
    labels = engine.train_examples.labels
    for row, nodes in enumerate(([1, 0], [4, 2])):
        for column, node in enumerate(nodes):
            held = torch.from_numpy(engine.federation.validation[node])
            assert len(held) == 4
            assert counts.labels[row, column].tolist() == torch.bincount(labels[held], minlength=3).tolist()


@pytest.mark.parametrize("kind", [SequentialEngine, stacked])
def test_workers_without_validation_samples_report_nothing(kind: Any) -> None:
    engine = make_engine(FedSat(), validation=0.2, clients=45, engine=kind)  # two samples each, of two classes
    training = start(engine)
    result = run_round(engine, training, SAMPLING)
    updates = engine.train(training.server, np.array([1, 4]), {}, 2).updates
    assert int(engine.evaluate_workers(updates, np.array([[1, 0], [4, 2]])).labels.sum()) == 0
    assert result.refused_workers == {}
    assert result.client_weights.weights.tolist() == pytest.approx([1 / 3] * 3)  # no report favours anyone


def test_traffic() -> None:
    engine = make_engine(FedAvg())
    training = start(engine)
    model = nbytes([engine.initial_model.params])
    assert run_round(engine, training, SAMPLING).traffic.down == 3 * model
    engine = make_engine(FedSat())
    training = start(engine)
    traffic = run_round(engine, training, SAMPLING).traffic
    # Model, v_t and two numbers about its noise to 3 clients, each client's model to one further worker; up: models,
    # and 2·3 counts from 2 workers.
    assert traffic.down == 3 * (2 * model + 2 * 8) + 3 * model
    assert traffic.up == 3 * model + 3 * 2 * 6 * 8
    assert traffic.workers == 3 * model + 3 * 2 * 6 * 8


class WithBuffers(nn.Module):
    """A small network with BatchNorm."""

    def __init__(self, input_shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(input_shape[0])
        self.layer = nn.Linear(input_shape[0], classes)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.layer(self.norm(x))
        return logits


def test_buffers_are_averaged_and_counters_take_the_maximum() -> None:
    engine = make_engine(FedAvg(weighting=Uniform()), model=f"{__name__}:WithBuffers", partition="ls", clients=3)
    training = start(engine)
    updates = engine.train(training.server, np.array([0, 1, 2]), {}, 1).updates
    assert training.server.model.buffers["norm.running_mean"].abs().max() == 0  # the server's buffers do not change
    run_round(engine, training, Sampling(3, 1, 3))
    after = training.server.model.buffers
    torch.testing.assert_close(
        after["norm.running_mean"], updates.model.buffers["norm.running_mean"].mean(0), rtol=0, atol=1e-12
    )
    counters = updates.model.buffers["norm.num_batches_tracked"]
    assert int(after["norm.num_batches_tracked"]) == int(counters.max())


def test_a_batch_of_one_leaves_running_statistics_alone() -> None:
    # 90 samples over 18 clients: 5 each, so every second batch of 4 holds a single sample.
    engine = make_engine(FedAvg(), model=f"{__name__}:WithBuffers", clients=18)
    updates = engine.train(start(engine).server, np.array([0]), {}, 1).updates
    assert updates.steps.tolist() == [4]
    assert updates.model.buffers["norm.num_batches_tracked"].tolist() == [2]
    assert bool(torch.isfinite(updates.model.params["layer.weight"]).all())


def test_not_finite_names_client_round_and_step() -> None:
    engine = make_engine(FedAvg(), lr=1e200)
    training = start(engine)
    before = training.server
    with pytest.raises(TrainingError, match=r"round 1, client \d, step \d+ of 10: the loss is"):
        run_round(engine, training, SAMPLING)
    assert training.server is before
    assert training.rounds == 0


def test_features_are_the_input_of_the_last_layer() -> None:
    class Curious(Algorithm):
        """Adds the mean square of the features to the loss."""

        uses_features = True

        def penalty(self, task: Task, carry: State, outputs: Outputs, batch: Batch) -> Tensor:
            assert outputs.features is not None
            assert outputs.features.shape == (1, batch.y.shape[1], 60)
            frozen = task.network(expand(task.start.params, 1), expand(task.start.buffers, 1), batch.x)
            assert frozen.features is not None
            return (outputs.features - frozen.features).square().mean(-1)

    engine = make_engine(Curious())
    training = start(engine)
    run_round(engine, training, SAMPLING)
    plain = make_engine(FedAvg())
    other = start(plain)
    run_round(plain, other, SAMPLING)
    name = "hidden.0.weight"
    assert not torch.equal(training.server.model.params[name], other.server.model.params[name])


def test_crop_and_flip_by_hand() -> None:
    image = torch.arange(1, 10, dtype=torch.uint8).view(1, 1, 3, 3)
    same, shifted, mirrored = crop_and_flip(
        image.expand(3, 1, 3, 3), torch.tensor([[4, 4, 0], [5, 3, 0], [4, 4, 1]], dtype=torch.uint8)
    )
    assert torch.equal(same, image[0])
    # One row down, one column to the left: the first column and the last row come from the padding.
    assert shifted[0].tolist() == [[0, 4, 5], [0, 7, 8], [0, 0, 0]]
    assert mirrored[0].tolist() == [[3, 2, 1], [6, 5, 4], [9, 8, 7]]


def test_augmented_training_differs_and_repeats() -> None:
    rng = np.random.default_rng(0)
    labels = np.arange(30) % 3
    images = rng.integers(0, 256, (30, 1, 12, 12), dtype=np.uint8)
    dataset = Dataset("noise", Split(images, labels), Split(images, labels), ("a", "b", "c"))

    def weights(augment: bool) -> Tensor:
        engine = make_engine(FedAvg(), dataset=dataset, augment=augment)
        training = start(engine)
        run_round(engine, training, SAMPLING)
        return training.server.model.params["hidden.0.weight"]

    assert torch.equal(weights(True), weights(True))
    assert not torch.equal(weights(True), weights(False))


class Dropping(nn.Module):
    """A user's network with dropout."""

    def __init__(self, input_shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(input_shape[0], 8), nn.Dropout(0.5), nn.Linear(8, classes))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.layers(x)
        return logits


def test_dropout_repeats_and_leaves_torchs_generator_alone() -> None:
    def weights() -> Tensor:
        engine = make_engine(FedAvg(), model=f"{__name__}:Dropping")
        training = start(engine)
        run_round(engine, training, SAMPLING)
        return training.server.model.params["layers.0.weight"]

    before = torch.random.get_rng_state()
    first = weights()
    assert torch.equal(before, torch.random.get_rng_state())
    torch.rand(3)
    assert torch.equal(first, weights())


def test_training_learns() -> None:
    for algorithm in (FedAvg(), FedSat()):
        engine = make_engine(algorithm, dataset=tiny_dataset(150), partition="lsmc", clients=10)
        training = start(engine)
        before = engine.test(training.server.model)
        for _ in range(3):
            run_round(engine, training, SAMPLING)
        after = engine.test(training.server.model)
        assert after.loss < before.loss
        assert after.accuracy > before.accuracy


class Tempered(nn.Module):
    """A frozen first layer, and a temperature without axes."""

    def __init__(self, input_shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.fixed = nn.Linear(input_shape[0], 7).requires_grad_(False)
        self.layer = nn.Linear(7, classes)
        self.temperature = nn.Parameter(torch.tensor(2.0))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.layer(torch.tanh(self.fixed(x))) / self.temperature
        return logits


def test_frozen_parameters_stay_and_scalars_train() -> None:
    engine = make_engine(FedSat(), model=f"{__name__}:Tempered")
    training = start(engine)
    before = engine.initial_model
    for _ in range(2):
        run_round(engine, training, SAMPLING)
    after = training.server.model
    assert torch.equal(after.buffers["fixed.weight"], before.buffers["fixed.weight"])
    assert not torch.equal(after.params["temperature"], before.params["temperature"])


def test_an_aggregate_that_is_not_finite_is_refused() -> None:
    class Exploding(FedAvg):
        def aggregate(self, server: Server, updates: Updates, weights: Tensor) -> Server:
            moved = super().aggregate(server, updates, weights)
            return replace(moved, memory={"momentum": {"w": torch.tensor([torch.inf])}})

    engine = make_engine(Exploding())
    training = start(engine)
    with pytest.raises(TrainingError, match="round 1: the aggregate is not finite"):
        run_round(engine, training, SAMPLING)
    assert training.rounds == 0
    assert training.states == {}
