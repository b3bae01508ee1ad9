"""Weights of their own for the rows of the last layer: the row of a class belongs to the logit of that class.

A client that lacks a class can still change the shared layers usefully, while its row for this class only forgets. With
`ClientWeights.rows`, [K, m], the row of class i is averaged with the weights of column i, and all else as usual.
"""

from __future__ import annotations

from torch import Tensor

from fedsat.errors import UsageError
from fedsat.tree import Tree


def average_rows(update: Tree, client_updates: Tree, rows: Tensor) -> Tree:
    """Return `update` with Σ_k w_{k,i} u_k in row i of the last layer's tensors."""
    means = {
        name: (_over(rows, client_updates[name], leading=2) * client_updates[name]).sum(0)
        for name in last_layer(update, rows.shape[1])
    }
    return {**update, **means}


def scale_rows(tree: Tree, factors: Tensor) -> Tree:
    """Return the tree with row i of the last layer's tensors times factor i, [m]."""
    return {**tree, **{name: _over(factors, tree[name]) * tree[name] for name in last_layer(tree, len(factors))}}


def last_layer(params: Tree, classes: int) -> list[str]:
    """Return the names of the parameters of the last layer (no client axis), whose rows must be the classes."""
    layer = next(reversed(params)).rpartition(".")[0]
    names = [name for name in params if name.rpartition(".")[0] == layer]
    if any(len(params[name]) != classes for name in names):
        raise UsageError(
            f"the model's last layer, {layer or names[-1]!r}, does not have one row for each of the {classes} classes; "
            "set class_rows=false"
        )
    return names


def _over(values: Tensor, like: Tensor, leading: int = 1) -> Tensor:
    """Return the values of the leading axes, shaped to broadcast against `like`."""
    return values.to(like.dtype).reshape(*values.shape, *[1] * (like.dim() - leading))
