"""Attacks by colluders, on single classes and by a backdoor, worked by hand. `test_byzfl` compares with ByzFL."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedsat.algorithms import FedAvg, Model
from fedsat.errors import UsageError
from fedsat.options import Spec
from fedsat.rounds import attacks
from fedsat.rounds.attacks import triggered
from tests.support.byhand import make_updates, one, scalar, values
from tests.support.federations import image_dataset, make_engine


def received(attack: Spec, attackers: list[int]) -> list[float]:
    """Return what the server receives from clients 0 to 3 with models 2, 3, 5, 9 after Θ = 1."""
    updates = make_updates(one(2, 3, 5, 9), [1, 1, 1, 1], 0.1)
    return values(attacks.build(attack).send(Model(scalar(1), {}), updates, np.array(attackers), 3, 4).model.params)


def test_colluders_send_what_they_make_of_the_honest_updates() -> None:
    # The honest updates 1, 2 and 4 − with clients 0, 1, 2 − have the mean 7/3; those of 0 and 2 have the mean 2.5 and
    # the standard deviation 3/√2.
    assert received({"name": "ipm", "factor": 3.0}, [3]) == pytest.approx([2, 3, 5, 1 - 7])
    little = 1 + 2.5 + 2 * 3 / 2**0.5
    assert received({"name": "alie", "z": 2.0}, [1, 3]) == pytest.approx([2, little, 5, little])


def test_colluders_alone_in_a_round_use_their_own_updates() -> None:
    assert received({"name": "ipm", "factor": 1.0}, [0, 1, 2, 3]) == pytest.approx([1 - 3.75] * 4)
    assert received("alie", [1, 2, 3]) == pytest.approx([2, 2, 2, 2])  # the only honest update, as it has no spread
    assert received("alie", [7]) == [2, 3, 5, 9]


def test_a_killed_class_loses_what_leads_to_its_logit() -> None:
    start = Model({"hidden.weight": torch.zeros(2, 1), "out.weight": torch.zeros(3, 2), "out.bias": torch.zeros(3)}, {})
    params = {name: torch.zeros(2, *tensor.shape) for name, tensor in start.params.items()}
    params["hidden.weight"][:] = torch.tensor([[3.0], [4.0]])  # both updates have the length 5
    attack = attacks.build({"name": "kill-class", "target": 1, "factor": 2.0})
    sent = attack.send(start, make_updates(params, [1, 1], 0.1), np.array([1]), 3, 4).model.params
    low = -2 * 5 / 3**0.5  # two weights and a bias share the addition
    assert torch.equal(sent["hidden.weight"], params["hidden.weight"])
    torch.testing.assert_close(sent["out.weight"][1], torch.tensor([[0, 0], [low, low], [0, 0]]))
    torch.testing.assert_close(sent["out.bias"], torch.tensor([[0, 0, 0], [0, low, 0]]))
    assert not sent["out.weight"][0].any()


def test_a_backdoor_marks_and_relabels_a_share_of_the_attackers_samples() -> None:
    federation = make_engine(FedAvg(), dataset=image_dataset(), clients=4).federation
    poisoned = attacks.build({"name": "backdoor", "target": 2, "share": 0.5}).poison(federation, np.array([3]))
    before, after = federation.dataset.train, poisoned.dataset.train
    own = federation.indices(3)
    changed = np.flatnonzero((before.images != after.images).any(axis=(1, 2, 3)))
    assert set(changed) <= set(own)
    assert len(changed) == len(own) // 2
    assert (after.images[changed][..., -3:, -3:] == before.images.max()).all()
    assert np.array_equal(after.images[changed][..., :-3, :], before.images[changed][..., :-3, :])
    assert (after.labels[changed] == 2).all()
    assert np.array_equal(np.delete(after.labels, changed), np.delete(before.labels, changed))


def test_the_trigger_of_a_table_is_its_last_feature() -> None:
    assert triggered(np.array([[1.0, 2.0]]), np.array([[1.0, 2.0], [9.0, 7.0]])).tolist() == [[1.0, 7.0]]


def test_a_class_that_does_not_exist_is_refused() -> None:
    federation = make_engine(FedAvg()).federation
    with pytest.raises(UsageError, match=r"attack.target is 3; the classes have the numbers 0 to 2"):
        attacks.build({"name": "backdoor", "target": 3}).poison(federation, np.array([0]))
    model = Model({"out.weight": torch.zeros(3, 2)}, {})
    updates = make_updates({"out.weight": torch.ones(1, 3, 2)}, [1], 0.1)
    with pytest.raises(UsageError, match=r"attack.target is 5"):
        attacks.build({"name": "kill-class", "target": 5}).send(model, updates, np.array([0]), 0, 1)
