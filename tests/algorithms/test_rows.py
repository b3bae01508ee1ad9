"""Weights of their own for the rows of the last layer, by hand."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fedsat.algorithms import FedAvg, FedSat, Model, PrioritizedClassWeights, Server, Updates
from fedsat.algorithms.aggregator import CoordinateMedian
from fedsat.algorithms.rows import last_layer
from fedsat.errors import UsageError
from fedsat.tree import Tree
from tests.support.byhand import make_updates

PARAMS: Tree = {"hidden.weight": torch.zeros(2, 1), "out.weight": torch.zeros(2, 1), "out.bias": torch.zeros(2)}
PARAMS = {name: tensor.double() for name, tensor in PARAMS.items()}
WEIGHTS = torch.tensor([0.5, 0.5], dtype=torch.float64)
ROWS = torch.tensor([[0.75, 0.25], [0.25, 0.75]], dtype=torch.float64)


def moved(rows: Tensor | None) -> Updates:
    """The first client moves every number to 2 in 1 step, the second to −2 in 3 steps."""
    ends = {name: torch.stack([tensor + 2, tensor - 2]) for name, tensor in PARAMS.items()}
    return make_updates(ends, [1, 3], 0.1, rows=rows)


def test_rows_have_weights_of_their_own() -> None:
    # Hidden: ½·2 − ½·2 = 0. Row 0: ¾·2 − ¼·2 = 1. Row 1: ¼·2 − ¾·2 = −1.
    server = FedAvg().aggregate(Server(Model(PARAMS, {})), moved(ROWS), WEIGHTS)
    assert server.model.params["hidden.weight"].tolist() == [[0.0], [0.0]]
    assert server.model.params["out.weight"].tolist() == [[1.0], [-1.0]]
    assert server.model.params["out.bias"].tolist() == [1.0, -1.0]


def test_fedsats_direction_counts_the_steps_of_each_row() -> None:
    # K̄ of the rows: ¾·1 + ¼·3 = 1.5 and ¼·1 + ¾·3 = 2.5. v = −1/(0.1·1.5) and 1/(0.1·2.5).
    method = FedSat(gamma=0.5)
    start = Server(Model(PARAMS, {}), method.initial_memory(Model(PARAMS, {})))
    after = method.aggregate(start, moved(ROWS), WEIGHTS)
    assert after.model.params["out.bias"].tolist() == pytest.approx([1.0, -1.0])
    direction = after.memory["direction"]
    assert direction["out.bias"].tolist() == pytest.approx([-1 / 0.15, 1 / 0.25])
    assert direction["out.weight"].flatten().tolist() == pytest.approx([-1 / 0.15, 1 / 0.25])
    assert direction["hidden.weight"].tolist() == [[0.0], [0.0]]


def test_rows_with_the_clients_weights_change_nothing() -> None:
    start = Server(Model(PARAMS, {}), FedSat().initial_memory(Model(PARAMS, {})))
    same = torch.tensor([[0.25, 0.25], [0.75, 0.75]], dtype=torch.float64)
    plain = FedSat().aggregate(start, moved(None), same[:, 0])
    found = FedSat().aggregate(start, moved(same), same[:, 0])
    for name, tensor in plain.model.params.items():
        torch.testing.assert_close(found.model.params[name], tensor, rtol=0, atol=1e-12)
        torch.testing.assert_close(found.memory["direction"][name], plain.memory["direction"][name], rtol=0, atol=1e-12)


def test_a_last_layer_without_a_row_for_each_class_is_refused() -> None:
    assert last_layer(PARAMS, 2) == ["out.weight", "out.bias"]
    with pytest.raises(UsageError, match="'out', does not have one row for each of the 3 classes"):
        last_layer(PARAMS, 3)


def test_other_aggregators_are_refused() -> None:
    with pytest.raises(UsageError, match="class_rows needs the mean"):
        FedSat(weighting=PrioritizedClassWeights(class_rows=True), aggregator=CoordinateMedian())
