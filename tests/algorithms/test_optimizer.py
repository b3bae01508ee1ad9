"""The local optimizer worked out by hand, and what methods compute from the steps it takes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from fedsat.algorithms import (
    SGD,
    Algorithm,
    FedAvg,
    FedCM,
    FedDyn,
    FedLADA,
    FedProx,
    FedSat,
    Scaffold,
    Task,
    Uniform,
    algorithms,
)
from fedsat.errors import UsageError
from fedsat.rounds import start
from fedsat.tree import State, Tree, tree_map
from tests.support.byhand import Bowl, Bowls, make_task, one, values
from tests.support.federations import make_engine


@pytest.mark.parametrize(
    ("optimizer", "theta"),
    [
        # From 0 with η = ½ and gradients θ − 4, two steps.
        (SGD(), 3),  # −4 → 2, −2 → 3
        (SGD(momentum=0.5), 4),  # v = −4 → 2; v = −2 − 2 = −4 → 4
        (SGD(momentum=0.5, nesterov=True), 4.25),  # d = −4 − 2 → 3; v = −2 − 1 = −3, d = −1 − 1.5 → 4.25
        (SGD(weight_decay=0.5), 2.5),  # −4 → 2; −2 + 1 → 2.5
        (SGD(clip=1), 1),  # −1 → ½, −1 → 1
        (SGD(clip=3), 2.75),  # −3 → 1.5; −2.5 is shorter → 2.75
        (SGD(clip=1, weight_decay=2, momentum=0.5), 0.75),  # −1 → ½; g = −1 + 1, v = −½ → ¾: decay is not clipped
    ],
)
def test_two_steps_by_hand(optimizer: SGD, theta: float) -> None:
    bowls = Bowls(FedAvg(), [Bowl(4, K=2)], lr=0.5, optimizer=optimizer)
    bowls.run_round(0)
    assert bowls.theta == pytest.approx(theta, abs=1e-5)  # torch's clipping adds 1e−6 to the norm


def test_clients_are_clipped_individually_over_all_parameters() -> None:
    # Norms 5 and 1; the largest allowed is 2.5.
    grads = {"w": torch.tensor([[3.0], [0.6]]), "b": torch.tensor([[4.0], [0.8]])}
    clipped = SGD(clip=2.5).gradient(grads, grads)
    torch.testing.assert_close(clipped["w"], torch.tensor([[1.5], [0.6]]))
    torch.testing.assert_close(clipped["b"], torch.tensor([[2.0], [0.8]]))


@pytest.mark.parametrize(("nesterov", "sums"), [(False, [1, 2.5, 4.25]), (True, [1.5, 3.25, 5.125])])
def test_effective_steps_by_hand(nesterov: bool, sums: list[float]) -> None:
    # μ = ½: a gradient with n steps left counts 1, 1.5, 1.75 (n = 1, 2, 3); in Nesterov's form 1.5, 1.75, 1.875.
    steps = torch.tensor([1, 2, 3])
    assert SGD(momentum=0.5, nesterov=nesterov).effective_steps(steps).tolist() == pytest.approx(sums)
    assert SGD(weight_decay=1).effective_steps(steps) is steps


def test_scaffold_divides_by_the_effective_steps() -> None:
    # η = ½, μ = ½. A: 0 → 2 → 4, c_A = −4/(½·2.5) = −3.2, the mean of −4 and −2 with weights 1.5 and 1.
    # B, one step: 0 → −2, c_B = 4. Θ = 1, c = (−3.2 + 4)/2.
    bowls = Bowls(Scaffold(), [Bowl(4, K=2), Bowl(-4, K=1)], lr=0.5, optimizer=SGD(momentum=0.5))
    bowls.run_round(0, 1)
    assert bowls.theta == 1
    assert bowls.kept(0, "control") == pytest.approx(-3.2)
    assert bowls.kept(1, "control") == pytest.approx(4)
    assert bowls.memory("control") == pytest.approx(0.4)
    # Round 2, A corrected by 0.4 + 3.2: −3 + 3.6 = 0.6 → 0.7; −3.3 + 3.6 = 0.3, v = 0.6 → 0.4.
    # c_A = (1 − 0.4)/1.25 − 3.6 = −3.12, the mean of the raw gradients −3 and −3.3 with weights 1.5 and 1.
    bowls.run_round(0)
    assert bowls.theta == pytest.approx(0.4)
    assert bowls.kept(0, "control") == pytest.approx(-3.12)


def test_fedsat_divides_by_the_effective_steps() -> None:
    # As above: v_k = −3.2 and 4; v = (0 − 1)/(½ · (2.5 + 1)/2) = −8/7.
    method = FedSat(weighting=Uniform())
    bowls = Bowls(method, [Bowl(4, K=2), Bowl(-4, K=1)], lr=0.5, optimizer=SGD(momentum=0.5))
    bowls.run_round(0, 1)
    assert bowls.kept(0, "direction") == pytest.approx(-3.2)
    assert bowls.kept(1, "direction") == pytest.approx(4)
    assert bowls.memory("direction") == pytest.approx(-8 / 7)


@pytest.mark.parametrize(("method", "name"), [(Scaffold(), "control"), (FedSat(weighting=Uniform()), "direction")])
def test_controls_contain_the_decay_and_the_clipped_steps(method: Algorithm, name: str) -> None:
    # η = ½. Decay ½, from 2: −2 + 1 → 2.5, so the client's control is (2 − 2.5)/½ = −1.
    bowls = Bowls(method, [Bowl(4, K=1)], lr=0.5, begin=2, optimizer=SGD(weight_decay=0.5))
    bowls.run_round(0)
    assert (bowls.theta, bowls.kept(0, name)) == pytest.approx((2.5, -1))
    # Clipped at 1, from 0: −4 and −3.5 become −1, so the control is −1/(½·2), although the mean gradient is −3.75.
    bowls = Bowls(method, [Bowl(4, K=2)], lr=0.5, optimizer=SGD(clip=1))
    bowls.run_round(0)
    assert (bowls.theta, bowls.kept(0, name)) == pytest.approx((1, -1), abs=1e-5)


@pytest.mark.parametrize(
    ("optimizer", "end"),
    [
        # α = 1, η = ½, from 0 with λ_k = 0: the first gradient is −4, then 2 (θ − 2) = (θ − 4) + θ.
        (SGD(), 2),  # −4 → 2, 0 → 2
        (SGD(weight_decay=0.5), 1.5),  # −4 → 2; 0 + 1 → 1.5
        (SGD(clip=3), 2),  # −3 → 1.5; −1 → 2
        (SGD(momentum=0.5), 3),  # −4 → 2; v = 0 − 2 → 3
    ],
)
def test_feddyns_dual_follows_the_model_under_every_optimizer(optimizer: SGD, end: float) -> None:
    bowls = Bowls(FedDyn(alpha=1), [Bowl(4, K=2)], lr=0.5, optimizer=optimizer)
    bowls.run_round(0)
    assert bowls.kept(0, "dual") == pytest.approx(end, abs=1e-5)
    assert bowls.theta == pytest.approx(2 * end, abs=1e-5)  # the client's model plus the mean dual


@pytest.mark.parametrize("method", [Scaffold(), FedDyn(alpha=0.5)])
def test_weight_decay_is_part_of_what_corrected_methods_minimise(method: Algorithm) -> None:
    # The minimum of the mean of ½(θ − b)² + ¼ θ² over b = 4, −2, 7 is 3/1.5; FedAvg's own is elsewhere.
    bowls = [Bowl(4, K=1), Bowl(-2, K=4), Bowl(7, K=2)]
    corrected = Bowls(method, bowls, lr=0.1, optimizer=SGD(weight_decay=0.5))
    plain = Bowls(FedAvg(), bowls, lr=0.1, optimizer=SGD(weight_decay=0.5))
    for _ in range(300):
        corrected.run_round(0, 1, 2)
        plain.run_round(0, 1, 2)
    assert corrected.theta == pytest.approx(2, abs=1e-6)
    assert abs(plain.theta - 2) > 0.5


def test_fedcm_clips_and_decays_the_mixed_direction() -> None:
    # α = ½, η = ½, clip 1, decay 0.2. −4·½ → −1 → 0.5, so Δ = −1. Then ½(−3.5) − ½ = −2.25 → −1, plus 0.1: → 0.95.
    bowls = Bowls(FedCM(alpha=0.5), [Bowl(4, K=1)], lr=0.5, optimizer=SGD(clip=1, weight_decay=0.2))
    bowls.run_round(0)
    assert (bowls.theta, bowls.memory("direction")) == pytest.approx((0.5, -1), abs=1e-5)
    bowls.run_round(0)
    assert bowls.theta == pytest.approx(0.95, abs=1e-5)


def test_momentum_accumulates_fedprox_s_term() -> None:
    # μ = 1, η = ½, from 0: v = −4 → 2; v = (−2 + 2) − 2 → 3. Without the term, it would be v = −2 − 2 → 4.
    bowls = Bowls(FedProx(mu=1), [Bowl(4, K=2)], lr=0.5, optimizer=SGD(momentum=0.5))
    bowls.run_round(0)
    assert bowls.theta == pytest.approx(3)


def test_fedlada_takes_the_moments_of_the_decayed_gradient() -> None:
    # β₁ = 0, β₂ = 1, v = 1, α = 1: θ = 2 − 0.1 (3 + 0.5·2).
    task = make_task(1, optimizer=SGD(weight_decay=0.5), received={"direction": {"w": torch.zeros(1)}})
    carry = {"first": one(0), "second": one(1), "largest": one(1)}
    params, _ = FedLADA(alpha=1, beta1=0, beta2=1).step(task, carry, one(2), one(3))
    assert values(params) == pytest.approx([1.6])


def test_the_documentation_says_what_each_method_refuses() -> None:
    page = (Path(__file__).parents[2] / "docs/concepts/methods.md").read_text(encoding="utf-8")
    table = page.split("\n## Local training\n")[1].split("\n\n")[1].splitlines()
    columns = ["momentum", "weight_decay", "clip", "steps", "label smoothing", "optimizer"]
    found = {}
    for row in table[2:]:
        methods, *cells = (cell.strip() for cell in row.strip("|").split("|"))
        refused = {column for column, cell in zip(columns, cells, strict=False) if cell == "refused"}
        found.update(dict.fromkeys(methods.split(", "), refused))
    assert found == {name: {*algorithms.build(name).refuses} for name in algorithms}


class Slower(SGD):
    """A user-defined optimizer."""

    def direction(self, params: Tree, grads: Tree, carry: State) -> tuple[Tree, State]:
        return tree_map(lambda g: g / 2, grads), carry


class Halved(FedAvg):
    """A step that ignores the optimizer."""

    def step(self, task: Task, carry: State, params: Tree, grads: Tree) -> tuple[Tree, State]:
        return tree_map(lambda p, g: p - task.lr * g / 2, params, grads), {}


def test_a_method_with_its_own_step_refuses_settings_that_it_would_ignore() -> None:
    assert Halved().refuses.keys() == {"optimizer", "momentum", "nesterov", "weight_decay", "clip"}
    engine = make_engine(Halved(), local={"optimizer": SGD(momentum=0.5)})
    with pytest.raises(UsageError, match=r"Halved.step returned the carry \[\], .* \['optimizer.velocity'\]"):
        engine.train(start(engine).server, np.array([0]), {}, 1)


def test_nesterov_needs_momentum() -> None:
    with pytest.raises(UsageError, match=r"optimizer.nesterov is true, but optimizer.momentum is 0"):
        SGD(nesterov=True)
