"""The paper's multilayer perceptron: 784-80-60-10 with ELU on MNIST."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Annotated

from torch import Tensor, nn

from fedsat.models.registry import Projection, classifier, models
from fedsat.options import Option


@models.register("mlp")
class MLP(nn.Module):
    """Fully connected layers with ELU; takes inputs of any shape."""

    def __init__(
        self,
        input_shape: tuple[int, ...],
        classes: int,
        *,
        hidden: Annotated[tuple[int, ...], Option("neurons of the hidden layers", at_least=1)] = (80, 60),
        projection: Projection = 0,
    ) -> None:
        super().__init__()
        sizes = (math.prod(input_shape), *hidden)
        layers: list[nn.Module] = []
        for inputs, outputs in pairwise(sizes):
            layers += [nn.Linear(inputs, outputs), nn.ELU()]
        self.hidden = nn.Sequential(*layers)
        self.classifier = classifier(sizes[-1], classes, projection)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of a batch."""
        logits: Tensor = self.classifier(self.hidden(x.flatten(1)))
        return logits
