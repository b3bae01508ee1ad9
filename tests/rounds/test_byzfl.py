"""Attacks and aggregators against ByzFL 0.0.11 (MIT), an independent implementation.

`byzfl.json` has ByzFL's results on random vectors, so the tests do not need ByzFL. To record them again:

    pip install --no-deps byzfl==0.0.11 scipy && python tests/rounds/test_byzfl.py
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedsat.algorithms import Model, aggregators
from fedsat.options import Spec
from fedsat.rounds import attacks
from tests.support.byhand import make_updates

RECORD = Path(__file__).with_name("byzfl.json")
HONEST, ALL = 8, 11
ATTACKS: dict[str, tuple[Spec, str, dict[str, Any]]] = {
    "alie": ({"name": "alie", "z": 1.5}, "ALittleIsEnough", {"tau": 1.5}),
    "alie backwards": ({"name": "alie", "z": -0.7}, "ALittleIsEnough", {"tau": -0.7}),
    "ipm": ({"name": "ipm", "factor": 2.0}, "InnerProductManipulation", {"tau": 2.0}),
    # ByzFL's attackers know the honest mean. Ours reverse their own update, which is the same if it is that mean.
    "sign-flip": ("sign-flip", "SignFlipping", {}),
}
AGGREGATORS: dict[str, tuple[Spec, str, dict[str, Any]]] = {
    "mean": ("mean", "Average", {}),
    "median": ("median", "Median", {}),
    "trimmed-mean": ({"name": "trimmed-mean", "hostile": 0.2}, "TrMean", {"f": 3}),
    # ByzFL counts one neighbour more than Blanchard et al. and we do; with clear outliers, the choice is the same.
    "multi-krum": ({"name": "multi-krum", "hostile": 0.2}, "MultiKrum", {"f": 3}),
}


def recorded(name: str) -> Tensor:
    return torch.tensor(json.loads(RECORD.read_text())[name], dtype=torch.float64)


@pytest.mark.parametrize("name", ATTACKS)
def test_attacks_agree_with_byzfl(name: str) -> None:
    vectors = recorded("vectors")
    if name == "sign-flip":
        vectors[HONEST:] = vectors[:HONEST].mean(0)
    start = Model({"w": torch.zeros_like(vectors[0])}, {})
    attack, attackers = attacks.build(ATTACKS[name][0]), np.arange(HONEST, ALL)
    sent = attack.send(start, make_updates({"w": vectors}, [1] * ALL, 0.1), attackers, 3, 4).model.params["w"]
    torch.testing.assert_close(sent[HONEST:], recorded(name).expand(ALL - HONEST, -1))
    assert torch.equal(sent[:HONEST], vectors[:HONEST])


@pytest.mark.parametrize("name", AGGREGATORS)
def test_aggregators_agree_with_byzfl(name: str) -> None:
    vectors = recorded("vectors")
    aggregator = aggregators.build(AGGREGATORS[name][0])
    weights = aggregator.select({"w": vectors}, torch.full((ALL,), 1 / ALL, dtype=torch.float64))
    torch.testing.assert_close(aggregator.centre({"w": vectors}, weights)["w"], recorded(name))


def byzfl() -> tuple[types.ModuleType, types.ModuleType]:
    """Return ByzFL's attacks and aggregators, without its benchmarks, which need further packages."""
    found = importlib.util.find_spec("byzfl")
    if found is None:
        sys.exit(f"ByzFL is not installed. {__doc__}")
    package = types.ModuleType("byzfl")
    package.__path__ = list(found.submodule_search_locations or [])
    sys.modules["byzfl"] = package
    return importlib.import_module("byzfl.attacks"), importlib.import_module("byzfl.aggregators")


def record() -> None:
    """Write the results of ByzFL; the last three vectors are outliers."""
    vectors = torch.randn(ALL, 7, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    vectors[HONEST:] += 9 * torch.tensor([[1.0], [-1.0], [2.0]])
    their_attacks, their_aggregators = byzfl()
    found = {"vectors": vectors.numpy()}
    for name, (_, theirs, options) in ATTACKS.items():
        found[name] = getattr(their_attacks, theirs)(**options)(vectors[:HONEST].numpy())
    for name, (_, theirs, options) in AGGREGATORS.items():
        found[name] = getattr(their_aggregators, theirs)(**options)(vectors.numpy())
    lines = ",\n".join(f'  "{name}": {json.dumps(values.tolist())}' for name, values in found.items())
    RECORD.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")


if __name__ == "__main__":
    record()
