"""Pace: how much a server lengthens a step that is short compared with the way so far.

    η_g ← η_g · clip(r_t / (8 √t · ‖Δ̄_t‖), 1, L)        r_t = max_{s ≤ t} ‖Θ_s − Θ_1‖

Δ̄_t is the aggregate of round t, and L the largest factor. r_t/√t is the step of the normalised gradient method with an
estimated distance (DoG, Ivgi et al. 2023), so the rule does not depend on the scale or the number of the weights.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedsat.algorithms.base import Model
from fedsat.tree import State, Tree, norms, tree_map

SHARE = 8.0
"""Steps shorter than r_t/(8 √t) are lengthened; docs/measurements/study.md shows how this number was chosen."""


def departure(model: Model) -> State:
    """Return what the server keeps before the first round: Θ_1, no rounds, no way."""
    device = next(iter(model.params.values())).device
    way = {name: torch.zeros((), dtype=torch.float64, device=device) for name in ("rounds", "farthest")}
    return {"departure": tree_map(torch.clone, model.params), "way": way}


def lengthening(memory: State, model: Model, update: Tree, most: float) -> tuple[float, State]:
    """Return the factor on the step, and the memory with this round counted."""
    way = memory["way"]
    rounds = way["rounds"] + 1
    away = length(tree_map(torch.sub, model.params, memory["departure"]))
    farthest = torch.maximum(way["farthest"], away)
    due, actual = farthest / (SHARE * rounds.sqrt()), length(update)
    factor = float((due / actual).clamp(1, most)) if bool(actual > 0) else 1.0
    return factor, {**memory, "way": {"rounds": rounds, "farthest": farthest}}


def length(tree: Tree) -> Tensor:
    """Return the Euclidean norm of a tree without client axis, in float64."""
    return norms(tree_map(lambda tensor: tensor[None], tree))[0]
