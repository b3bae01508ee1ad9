"""Descent in place by hand, with gradients that are left as parts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from fedsat.engine.network import Parts
from fedsat.engine.steps import descend_in_place


@pytest.mark.parametrize(("pull", "wanted"), [(None, 9.3), (2.0, 9.1)])
def test_parts_are_added_and_pulled_once(pull: float | None, wanted: float) -> None:
    # The weight is used twice. θ = 10, gradients 1 + 2 and 4, η = 0.1: 10 − 0.1 (3 + 4) = 9.3. A pull counts once.
    weight = torch.full((1, 1, 1, 1, 1), 10.0, requires_grad=True)
    other = torch.full((1, 1), 10.0, requires_grad=True)

    def tree(value: float) -> dict[str, Tensor]:
        return {"conv": torch.full_like(weight, value), "other": torch.full_like(other, value)}

    algorithm = SimpleNamespace(pull=lambda *_: None if pull is None else tree(pull))
    group: Any = SimpleNamespace(
        own=lambda given: given,
        carry=lambda carry: carry,
        task=SimpleNamespace(lr=0.1),
        algorithm=algorithm,
        place=slice(None),
    )
    parts = [torch.tensor([1.0, 2.0]), torch.tensor([4.0])]
    left = [Parts(weight.detach(), each.view(-1, 1, 1, 1, 1, 1)) for each in parts]
    descend_in_place([group], {}, {"conv": weight, "other": other}, (7 * other).sum(1), left)
    assert weight.item() == pytest.approx(wanted)
    assert other.item() == pytest.approx(wanted)
