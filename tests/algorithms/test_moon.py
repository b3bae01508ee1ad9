"""MOON's contrastive term by hand, the clients' state, and the special cases that equal FedAvg."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from fedsat.algorithms import FedAvg, Model, Moon, Outputs
from fedsat.engine.network import last_layer_input
from fedsat.models import build_model
from fedsat.options import Spec
from fedsat.rounds import Sampling, run_round, start
from fedsat.rounds.sampling import batch_order
from fedsat.tree import Tree
from tests.support.byhand import after_rounds, make_batch, make_task, same
from tests.support.federations import make_engine, tiny_dataset

IMAGES = {"dataset": tiny_dataset(40, (3, 8, 8)), "model": {"name": "resnet8", "width": 2}, "epochs": 1}
NORMS: list[Spec] = [{"name": "resnet8", "width": 2}, {"name": "resnet8", "width": 2, "projection": 5}]


def rows(*vectors: list[float]) -> torch.Tensor:
    return torch.tensor(vectors, dtype=torch.float64)


def network(params: Tree, buffers: Tree, x: torch.Tensor) -> Outputs:
    """A network whose representation of any sample is its one parameter."""
    clients, samples = x.shape[:2]
    return Outputs(x, params["w"].unsqueeze(1).expand(clients, samples, -1))


def test_contrastive_term_by_hand() -> None:
    # z_glob = (0, 1) for both clients, z_prev = (3, 0) and (0, 5); τ = ½, μ = 3.
    # A, z = (2, 0): cos with z_glob 0, with z_prev 1: ℓ = −log(e⁰/(e⁰ + e²)) = log(1 + e²).
    # B, z = (2, 0): both 0: log 2.
    given = make_task(
        2,
        start=Model({"w": rows([0, 1])[0]}, {}),
        state={"previous": {"w": rows([3, 0], [0, 5])}, "previous_buffers": {}},
        network=network,
    )
    z = torch.stack([rows([2, 0]), rows([2, 0])]).requires_grad_()
    batch = make_batch([[[0.0]], [[0.0]]], [[0], [1]])
    penalty = Moon(mu=3).penalty(given, {}, Outputs(batch.x, z), batch)
    assert penalty.flatten().tolist() == pytest.approx([3 * math.log(1 + math.e**2), 3 * math.log(2)])
    # d cos(z, p)/dz = (p/|p| − cos · z/|z|)/|z|: (0, 0) for A's z_prev, (0, ½) for all the others.
    # dℓ/dz = μ/τ · s · (d cos(z, z_prev) − d cos(z, z_glob)) with s = e²/(1 + e²) for A: (0, −3 s); B: (0, 0).
    (grad,) = torch.autograd.grad(penalty.sum(), z)
    share = math.e**2 / (1 + math.e**2)
    assert grad.flatten().tolist() == pytest.approx([0, -3 * share, 0, 0])
    # At τ = 1 the similarities count half: log(1 + e).
    warm = Moon(mu=1, temperature=1).penalty(given, {}, Outputs(batch.x, z), batch)
    assert warm[0, 0].item() == pytest.approx(math.log(1 + math.e))


@pytest.mark.parametrize("model", ["mlp", *NORMS])
def test_mu_zero_is_fedavg_bit_for_bit(model: Spec) -> None:
    settings = {**IMAGES, "model": model, "rounds": 2}
    assert same(after_rounds(Moon(mu=0), **settings), after_rounds(FedAvg(), **settings))


@pytest.mark.parametrize("model", ["mlp", *NORMS])
def test_the_first_participation_is_fedavg_bit_for_bit(model: Spec) -> None:
    settings = {**IMAGES, "model": model}
    assert same(after_rounds(Moon(mu=5), rounds=1, **settings), after_rounds(FedAvg(), rounds=1, **settings))
    # All five clients are sampled again in the second round, where the term matters.
    assert not same(
        after_rounds(Moon(mu=5), rounds=2, per_round=5, **settings),
        after_rounds(FedAvg(), rounds=2, per_round=5, **settings),
    )


def test_clients_keep_the_model_that_their_training_ended_with() -> None:
    engine = make_engine(Moon(), partition="iid", **IMAGES)
    training = start(engine)
    trained = engine.train(training.server, np.arange(5), {}, 1)
    for row, state in enumerate(trained.states):
        for kept, sent in [
            ("previous", trained.updates.model.params),
            ("previous_buffers", trained.updates.model.buffers),
        ]:
            assert state[kept].keys() == sent.keys()
            assert all(torch.equal(state[kept][name][0], tensor[row]) for name, tensor in sent.items())
    # Clients that are not sampled keep their model, however old it is.
    training.states = dict(zip(trained.updates.clients.tolist(), trained.states, strict=True))
    before = dict(training.states)
    called = run_round(engine, training, Sampling(per_round=2, workers=1, seed=3)).clients.tolist()
    assert all((training.states[client] is state) == (client not in called) for client, state in before.items())


def test_engine_equals_the_authors_loss_in_a_plain_loop() -> None:
    # The authors' code: cosine similarities side by side, divided by τ, cross-entropy with label 0, averaged, times μ.
    engine = make_engine(Moon(mu=2), clients=3, partition="iid")
    federation, training = engine.federation, start(engine)
    net = build_model("mlp", (6,), 3, seed=3).double()
    features = nn.Sequential(nn.Flatten(), net.hidden)  # type: ignore[arg-type]
    previous: dict[int, list[torch.Tensor]] = {}
    for number in range(1, 4):
        called = run_round(engine, training, Sampling(per_round=2, workers=1, seed=3)).clients.tolist()
        received = [p.detach().clone() for p in net.parameters()]
        trained = []
        for client in called:
            held = federation.indices(client)
            for epoch in batch_order(3, number, client, len(held), 2):
                for rows_ in np.split(held[epoch], range(4, len(held), 4)):
                    images = federation.dataset.train.images[rows_].astype(np.float64)
                    images = (images - np.array(federation.dataset.mean)) / np.array(federation.dataset.std)
                    x = torch.from_numpy(images)
                    frozen = []
                    current = [p.detach().clone() for p in net.parameters()]
                    for weights in (received, previous.get(client, received)):
                        _load(net, weights)
                        frozen.append(features(x).detach())
                    _load(net, current)
                    net.zero_grad()
                    z = features(x)
                    similarities = torch.stack([functional.cosine_similarity(z, other) for other in frozen], 1) / 0.5
                    labels = torch.from_numpy(federation.dataset.train.labels[rows_])
                    loss = functional.cross_entropy(net(x), labels)
                    loss = loss + 2 * functional.cross_entropy(similarities, torch.zeros_like(labels))
                    loss.backward()  # type: ignore[no-untyped-call]
                    with torch.no_grad():
                        for p in net.parameters():
                            p.sub_(0.1 * p.grad)  # type: ignore[operator]
            previous[client] = [p.detach().clone() for p in net.parameters()]
            trained.append((len(held), previous[client]))
            _load(net, received)
        total = sum(size for size, _ in trained)
        _load(net, [sum(size / total * w[i] for size, w in trained) for i in range(len(received))])  # type: ignore[misc]
        for ours, theirs in zip(training.server.model.params.values(), net.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs.detach(), rtol=0, atol=1e-11)


def _load(net: nn.Module, weights: list[torch.Tensor]) -> None:
    with torch.no_grad():
        for p, weight in zip(net.parameters(), weights, strict=True):
            p.copy_(weight)


def test_projection_head_as_its_authors_have_it() -> None:
    # Encoder of d = 60, Linear(60, 60), ReLU, Linear(60, 256), and the classifier on top of the projection.
    module = build_model({"name": "mlp", "projection": 256}, (6,), 3, seed=0)
    plain = build_model("mlp", (6,), 3, seed=0)
    extra = (60 * 60 + 60) + (60 * 256 + 256) + (256 * 3 + 3) - (60 * 3 + 3)
    assert _size(module) - _size(plain) == extra
    with last_layer_input(module) as seen:
        assert module(torch.randn(4, 6)).shape == (4, 3)
    assert seen[0].shape == (4, 256)


def _size(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())
