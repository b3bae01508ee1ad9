"""The work of every contender: a federation's data, and the local training of one client.

The plain loop and the peers use it. Peers run in separate processes, and in a separate environment, because Flower
needs older libraries than the package. The work can therefore be saved to a file and loaded from it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedsat.models import build_model
from fedsat.rounds.sampling import batch_order

CLIENTS, PER_ROUND, EPOCHS, BATCH_SIZE, LR = 100, 15, 5, 16, 0.01


@dataclass(frozen=True)
class Work:
    """A model, samples as uint8 with labels, their assignment to clients, a test set, and the clients of a round."""

    model: dict[str, Any]
    per_round: int
    images: Tensor
    labels: Tensor
    mean: Tensor
    std: Tensor
    held: list[np.ndarray]
    test_images: Tensor
    test_labels: Tensor

    def save(self, path: Path) -> None:
        """Save the work to a file."""
        tensors = ("images", "labels", "mean", "std", "test_images", "test_labels")
        np.savez(
            path,
            model=json.dumps(self.model),
            per_round=self.per_round,
            held=np.concatenate(self.held),
            sizes=[len(own) for own in self.held],
            **{name: getattr(self, name).numpy() for name in tensors},
        )

    @staticmethod
    @cache
    def load(path: Path) -> Work:
        """Load the work from a file."""
        with np.load(path, allow_pickle=False) as file:
            arrays = dict(file)
        model, per_round = json.loads(str(arrays.pop("model"))), int(arrays.pop("per_round"))
        held, sizes = arrays.pop("held"), arrays.pop("sizes")
        tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
        return Work(model=model, per_round=per_round, held=np.split(held, np.cumsum(sizes)[:-1]), **tensors)

    def new_model(self) -> nn.Module:
        """Return the model before the first round, which is the same for all contenders."""
        return build_model(self.model, tuple(self.images.shape[1:]), 10, 0)

    def inputs(self, images: Tensor) -> Tensor:
        """Return normalised images."""
        return (images.float() / 255 - self.mean.view(-1, 1, 1)) / self.std.view(-1, 1, 1)

    def samples(self, client: int) -> tuple[Tensor, Tensor]:
        """Return a client's normalised samples and their labels."""
        own = torch.from_numpy(self.held[client]).to(self.images.device)
        return self.inputs(self.images[own]), self.labels[own]

    def train(self, model: nn.Module, client: int, round_number: int) -> None:
        """Train one client for a round in plain PyTorch: tensor batches and `torch.optim.SGD`."""
        x, y = self.samples(client)
        optimizer = torch.optim.SGD(model.train().parameters(), lr=LR)
        for order in torch.from_numpy(batch_order(0, round_number, client, len(y), EPOCHS)).to(y.device):
            for batch in torch.split(order, BATCH_SIZE):
                optimizer.zero_grad()
                functional.cross_entropy(model(x[batch]), y[batch]).backward()
                optimizer.step()

    @torch.no_grad()
    def test_loss(self, model: nn.Module) -> float:
        """Return the mean loss on the test set, which shows that contenders do the same work."""
        return float(functional.cross_entropy(model.eval()(self.inputs(self.test_images)), self.test_labels))
