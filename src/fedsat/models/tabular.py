"""A network for tables: embeddings of categories and numbers, and a multilayer perceptron."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Annotated

from torch import Tensor, nn

from fedsat.models.registry import Projection, classifier, models
from fedsat.options import Option


@models.register("tabular")
class Tabular(nn.Module):
    """Embeddings of a table's columns, then fully connected layers with ELU.

    The embedding of a row is a sum: one vector for each of its categories, and one vector for each number, multiplied
    by the number. As the inputs of a category are 0 and 1 (see `fedsat.data.Schema`), this is a matrix product, which
    the stacked engine computes for all clients at once.
    """

    def __init__(
        self,
        input_shape: tuple[int, ...],
        classes: int,
        *,
        embedding: Annotated[int, Option("length of the vectors of categories and numbers", at_least=1)] = 32,
        hidden: Annotated[tuple[int, ...], Option("neurons of the hidden layers", at_least=1)] = (64, 32),
        projection: Projection = 0,
    ) -> None:
        super().__init__()
        self.embedding = nn.Linear(math.prod(input_shape), embedding, bias=False)
        sizes = (embedding, *hidden)
        layers: list[nn.Module] = []
        for inputs, outputs in pairwise(sizes):
            layers += [nn.Linear(inputs, outputs), nn.ELU()]
        self.hidden = nn.Sequential(*layers)
        self.classifier = classifier(sizes[-1], classes, projection)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of a batch."""
        logits: Tensor = self.classifier(self.hidden(self.embedding(x.flatten(1))))
        return logits
