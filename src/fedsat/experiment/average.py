"""A running mean of the global models, which varies less from round to round than the last model."""

from __future__ import annotations

from torch import Tensor

from fedsat.algorithms import Model
from fedsat.tree import tree_map


def running_mean(mean: Model | None, model: Model, rounds: int, decay: float) -> Model:
    """Return (1 − a) · mean + a · model with a = max(1 − decay, 1/t) after t rounds. Integer buffers are copied.

    As long as 1/t is larger, all models have the same weight. Afterwards, each weight decays by `decay` per round.
    """
    if mean is None:
        return model
    share = max(1 - decay, 1 / rounds)

    def mixed(former: Tensor, latest: Tensor) -> Tensor:
        return former.lerp(latest, share) if latest.is_floating_point() else latest

    return Model(tree_map(mixed, mean.params, model.params), tree_map(mixed, mean.buffers, model.buffers))
