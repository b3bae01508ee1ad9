"""Learning-rate schedules by hand, and the rate that methods and servers see."""

from __future__ import annotations

from typing import Any

import pytest

from fedsat.algorithms import FedAvg, Scaffold
from fedsat.rounds import Sampling, lr_schedules, run_round, start
from tests.support.federations import make_engine, stacked


@pytest.mark.parametrize(
    ("schedule", "factors"),
    [
        ("constant", [1, 1, 1, 1, 1]),
        ({"name": "constant", "warmup": 3}, [1 / 4, 2 / 4, 3 / 4, 1, 1]),
        ({"name": "exponential", "decay": 0.5}, [1, 1 / 2, 1 / 4, 1 / 8, 1 / 16]),
        ({"name": "exponential", "decay": 0.5, "warmup": 1}, [1 / 2, 1, 1 / 2, 1 / 4, 1 / 8]),
        ({"name": "step", "decay": 0.1, "every": 2}, [1, 1, 0.1, 0.1, 0.01]),
        # cos(π i/4) for i = 0 … 3 after one round of warm-up: 1, 1/√2, 0, −1/√2.
        ({"name": "cosine", "warmup": 1}, [1 / 2, 1, 0.8535533905932737, 0.5, 0.14644660940672627]),
        ({"name": "cosine", "warmup": 3, "lowest": 0.2}, [1 / 4, 2 / 4, 3 / 4, 1, 0.6]),
    ],
)
def test_factors_by_hand(schedule: Any, factors: list[float]) -> None:
    built = lr_schedules.build(schedule)
    assert [built.factor(number, 5) for number in range(1, 6)] == pytest.approx(factors)


def test_a_constant_rate_is_the_rate_itself() -> None:
    assert make_engine(FedAvg(), lr=0.1).training.lr_in(7) == 0.1


@pytest.mark.parametrize("kind", [None, stacked])
def test_a_quantity_is_computed_with_the_rate_of_its_round(kind: Any) -> None:
    # With option II, a client alone in its federation has c_k = c: plain steps. Then c_k = (Θ − θ)/(η_t K).
    local = {"lr_schedule": lr_schedules.build({"name": "exponential", "decay": 0.5}), "rounds": 3}
    options = {} if kind is None else {"engine": kind}
    engine = make_engine(Scaffold(), clients=1, epochs=1, batch_size=45, lr=0.2, local=local, **options)
    training = start(engine)
    for lr in (0.2, 0.1, 0.05):
        before = training.server.model.params
        result = run_round(engine, training, Sampling(per_round=1, workers=1, seed=3))
        assert result.lr == lr
        control, after = training.states[0]["control"], training.server.model.params
        for name in before:
            expected = (before[name] - after[name]) / (lr * 2)
            assert float((control[name][0] - expected).abs().max()) < 1e-12
            assert bool(expected.any())
