"""What a server learns from updates: two attacks, without a defence, with secure aggregation, with local privacy.

    python benchmarks/leakage.py

*Imprint* (Fowl et al., Robbing the Fed, ICLR 2022): an active server sends a model whose first layer sorts samples by
brightness. All rows have the same weights, and their biases are thresholds. A sample activates the rows whose
thresholds it reaches, so the difference between the gradients of two neighbouring rows contains the samples between
their thresholds. If there is only one, it can be read.

*Labels* (after Wainakh et al., User-Level Label Leakage from Gradients, PETS 2022): a curious server looks at the bias
of the last layer, whose update is the learning rate times the sum over all steps of how often each class occurs, minus
how often it is predicted.

Both use the built-in images (mnist-mini), with 20 clients of 300 images. 15 of them are sampled. Table in
docs/concepts/threats.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import fedsat
from fedsat.algorithms import Model, Server
from fedsat.algorithms.base import client_updates
from fedsat.experiment import Run
from fedsat.rounds import TrainedRound
from fedsat.seeding import Indices

CLIENTS, SAMPLED, CLASSES = 20, 15, 10
LOCAL = {"name": "local", "dp_clip": 1.0}
STEEPNESS = 3e4
"""How sharply a row of the imprint separates darker from brighter images."""
CLOSE = 0.02
"""Root mean square error below which an image counts as recovered; pixels are between 0 and 1."""


@dataclass(frozen=True)
class Defence:
    """What clients do against the server."""

    name: str
    settings: dict[str, Any]


def defences(rounds: int) -> list[Defence]:
    """Return the defences; the noise is that of ε = 8 for a client that takes part in so many rounds."""
    return [
        Defence("none", {}),
        Defence("secure aggregation", {"secure_aggregation": True}),
        Defence(
            f"local privacy, ε = 8 after {rounds} updates", {"privacy": {**LOCAL, "dp_noise": noise_for(8, rounds)}}
        ),
    ]


def main() -> None:
    """Print one table per attack."""
    print("| defence | rows | images in the update | recovered |\n|---|---|---|---|")
    for rows in (1000, 4000):
        for defence in defences(1):
            print(imprint(defence, rows), flush=True)
    print("\n| defence | error of the class shares | clients whose classes are all named |\n|---|---|---|")
    for defence in defences(10):
        print(labels(defence), flush=True)


def imprint(defence: Defence, rows: int) -> str:
    """Return a row of the table: how many images the server recovers from the first update that it can read."""
    run = prepared(defence, partition="iid", model={"name": "mlp", "hidden": [rows]}, steps=1, batch_size="all", lr=1.0)
    engine = run.setup.engine
    server = Server(sorting_model(run, rows))
    clients = np.arange(SAMPLED)
    received = arrived(run, server, engine.train(server, clients, {}, 1))
    one = {name: tensor[0] for name, tensor in received.items()}
    secure = bool(run.setup.config.secure_aggregation)
    images = images_of(run, clients if secure else clients[:1])
    found = recovered(differences(one, run), images, run)
    return f"| {defence.name} | {rows:,} | {len(images):,} | {found:,} |"


def prepared(defence: Defence, **settings: Any) -> Run:
    """Return a run before its first round."""
    return fedsat.prepare(
        fedsat.configure(
            dataset="mnist-mini", clients=CLIENTS, per_round=SAMPLED, rounds=1, algorithm="fedavg",
            engine="sequential", **settings, **defence.settings,
        )
    )  # fmt: skip


def arrived(run: Run, server: Server, trained: TrainedRound) -> dict[str, Tensor]:
    """Return the updates as the server sees them, stacked; with secure aggregation, all are the mean."""
    updates = trained.updates
    weights = updates.sizes.double() / updates.sizes.sum()
    return client_updates(server.model, run.setup.engine.protection.release(server.model, updates, weights, 1))


def sorting_model(run: Run, rows: int) -> Model:
    """Return a network of the run's shape with thresholds that are quantiles of the brightness of public images."""
    start = run.setup.engine.initial_model
    params = {name: torch.zeros_like(tensor) for name, tensor in start.params.items()}
    names = list(params)
    public = inputs(run, run.setup.federation.dataset.test.images)  # type: ignore[union-attr]
    thresholds = torch.quantile(public.mean(1), torch.linspace(0, 1, rows, dtype=torch.float64))
    params[names[0]][:] = STEEPNESS / public.shape[1]
    params[names[1]][:] = -STEEPNESS * thresholds
    params[names[2]][0] = 1.0  # all rows have the same gradient; class 0 is predicted, so its images have none
    return Model(params, start.buffers)


def differences(update: dict[str, Tensor], run: Run) -> Tensor:
    """Return what lies between neighbouring thresholds, scaled so that the first pixel, in a corner, is black.

    The gradient of the bias has the scale as well, but the thresholds are so large that it is lost in rounding.
    """
    weight = next(iter(update.values())).double()
    rows = weight[:-1] - weight[1:]
    black = -run.setup.inputs.mean[0] / run.setup.inputs.std[0]
    some = rows[:, 0].abs() > 1e-3 * rows[:, 0].abs().max()
    return rows[some] * black / rows[some, :1]


def recovered(found: Tensor, images: Tensor, run: Run) -> int:
    """Return how many of the images are among those found."""
    spread = torch.tensor(run.setup.inputs.std[0], dtype=torch.float64)
    near = torch.cdist(images, found).min(1).values * spread / images.shape[1] ** 0.5
    return int((near < CLOSE).sum())


def images_of(run: Run, clients: Indices) -> Tensor:
    """Return the training images of clients as the network sees them."""
    federation = run.setup.federation
    assert federation is not None
    return inputs(run, np.concatenate([federation.dataset.train.images[federation.indices(k)] for k in clients]))


def inputs(run: Run, images: NDArray[Any]) -> Tensor:
    """Return normalised images as rows."""
    mean, std = run.setup.inputs.mean[0], run.setup.inputs.std[0]
    return (torch.from_numpy(images).double().flatten(1) / 255 - mean) / std


def labels(defence: Defence) -> str:
    """Return a row of the table: how well the server knows every client's class shares after the first round."""
    run = prepared(defence, partition={"name": "lsmc", "classes_per_client": 3}, epochs=1, batch_size=16, lr=0.01)
    engine, federation = run.setup.engine, run.setup.federation
    assert federation is not None
    server, clients = run.training.server, np.arange(SAMPLED)
    trained = engine.train(server, clients, {}, 1)
    bias = arrived(run, server, trained)["classifier.bias"].double()
    # −Δb/(η K) is the mean of what is predicted minus what occurs; at the start, predictions are about uniform.
    shares = (bias / (0.01 * trained.updates.steps[:, None]) + 1 / CLASSES).clamp(min=0)
    guessed = (shares / shares.sum(1, keepdim=True).clamp(min=1e-9)).numpy()
    counts = federation.class_mixes[clients]
    true = counts / counts.sum(1, keepdims=True)
    error = np.abs(guessed - true).sum(1).mean() / 2
    named = [
        set(np.argsort(-guess)[: (own > 0).sum()]) == set(np.flatnonzero(own))
        for guess, own in zip(guessed, counts, strict=True)
    ]
    return f"| {defence.name} | {error:.2f} | {sum(named)} of {len(named)} |"


def noise_for(epsilon: float, updates: int) -> float:
    """Return the noise by sensitivity for which so many updates cost ε at δ = 10⁻⁵."""
    from fedsat.rounds.ledger import gaussian_epsilon  # noqa: PLC0415

    low, high = 0.01, 1e4
    while high / low > 1.001:
        middle = (low * high) ** 0.5
        low, high = (low, middle) if gaussian_epsilon(((middle, updates),), 1e-5) <= epsilon else (middle, high)
    return high


if __name__ == "__main__":
    main()
