"""Small federations that tests share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from fedsat.algorithms import Algorithm
from fedsat.data import Dataset, Federation, Split
from fedsat.engine import SequentialEngine, StackedEngine
from fedsat.engine.fold import FoldedNetwork
from fedsat.models import build_model
from fedsat.options import Spec
from fedsat.rounds import (
    Attack,
    Engine,
    FederationState,
    LocalTraining,
    RoundResult,
    Sampling,
    run_round,
    start,
)
from fedsat.seeding import Indices
from fedsat.tree import Tree


def tiny_dataset(samples: int = 90, features: tuple[int, ...] = (6,), classes: int = 3) -> Dataset:
    """Return Gaussian clouds, one per class: learnable in a few rounds, small enough for float64."""
    rng = np.random.default_rng(7)
    centres = rng.normal(size=(classes, *features)) * 2

    def split(count: int) -> Split:
        labels = np.arange(count) % classes
        return Split((centres[labels] + rng.normal(size=(count, *features))).astype(np.float32), labels)

    return Dataset("tiny", split(samples), split(samples // 2), tuple("abcdefghij"[:classes]))


def make_engine(
    algorithm: Algorithm,
    *,
    dataset: Dataset | None = None,
    clients: int = 5,
    partition: Spec = "iid",
    model: Spec = "mlp",
    epochs: int = 2,
    batch_size: int | Literal["all"] = 4,
    lr: float = 0.1,
    seed: int = 3,
    augment: bool = False,
    stragglers: float = 0.0,
    validation: float = 0.0,
    attack: Attack | None = None,
    attackers: Indices | None = None,
    engine: Callable[..., Any] = SequentialEngine,
    local: dict[str, Any] | None = None,
    **options: Any,
) -> Any:
    """Return an engine on the tiny dataset in float64, by default the sequential one.

    `local` has further settings of local training.
    """
    dataset = dataset or tiny_dataset()
    federation = Federation.build(dataset, partition, clients, seed).with_validation(validation, seed)
    if attack is not None and attackers is not None:
        federation = attack.poison(federation, attackers)
    module = build_model(model, dataset.input_shape, dataset.classes, seed)
    training = LocalTraining(epochs, batch_size, lr, augment, seed, stragglers, **(local or {}))
    return engine(module, federation, algorithm, training, torch.device("cpu"), torch.float64, **options)


def stacked(
    module: nn.Module, federation: Federation, algorithm: Algorithm, *rest: Any, **options: Any
) -> StackedEngine:
    """Return a stacked engine with a folded network, with the arguments of `SequentialEngine`."""
    return StackedEngine(
        FoldedNetwork(module, algorithm.uses_features), module, federation, algorithm, *rest, **options
    )


def furthest(left: Tree, right: Tree) -> float:
    """The largest difference between two trees."""
    assert left.keys() == right.keys()
    gaps = [(left[name] - right[name]).abs().max().double().cpu() for name in left]
    return float(torch.stack(gaps).max()) if gaps else 0.0  # torch's maximum propagates NaN


SAMPLING = Sampling(per_round=4, workers=3, seed=3)


def image_dataset() -> Dataset:
    """Noise with a bright patch for each class, 3×12×12."""
    rng = np.random.default_rng(5)

    def split(count: int) -> Split:
        labels = np.arange(count) % 4
        images = rng.integers(0, 100, (count, 3, 12, 12), dtype=np.uint8)
        for image, label in zip(images, labels, strict=True):
            image[:, 3 * label : 3 * label + 3] += 120
        return Split(images, labels)

    return Dataset("patches", split(120), split(40), tuple("abcd"))


def run_rounds(engine: Engine, rounds: int) -> tuple[FederationState, list[RoundResult]]:
    """Run rounds from the start."""
    training = start(engine)
    return training, [run_round(engine, training, SAMPLING) for _ in range(rounds)]
