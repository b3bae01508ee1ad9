"""Clipping and noise against calculations by hand; what leaves a client; and what one client can change."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import fedsat
from fedsat.algorithms import Model, Updates, algorithms
from fedsat.algorithms.base import step_direction
from fedsat.engine import SequentialEngine
from fedsat.errors import UsageError
from fedsat.experiment.config import Config
from fedsat.metrics import ClassCounts
from fedsat.rounds import Protection, privacies
from fedsat.rounds.noise import Secure, Seeded, Source, secure, seeded
from fedsat.rounds.privacy import Central, Local
from tests.support.federations import furthest, make_engine, run_rounds, stacked


class Silence(Source):
    """No noise."""

    def noised(self, values: Any, noise: float, sensitivity: float) -> Any:
        return values

    def discrete(self, sigma: float, size: int) -> Any:
        return np.zeros(size, dtype=np.int64)


def quiet(*place: object) -> Source:
    return Silence()


def tree(*rows: list[float]) -> dict[str, torch.Tensor]:
    """Return a stacked tree of two tensors, one value in the first and the others in the second."""
    table = torch.tensor(rows, dtype=torch.float64)
    return {"a": table[:, :1], "b": table[:, 1:]}


def test_long_updates_are_scaled_to_the_clip() -> None:
    known = {"a": torch.tensor([1.0]), "b": torch.tensor([1.0, 1.0])}
    sent = Central(dp_clip=2.5).send(known, tree([4.0, 5.0, 1.0], [1.0, 1.3, 1.4]), [])
    # The first update (3, 4, 0) has norm 5 and is halved; the second has norm 0.5 and stays.
    assert torch.allclose(sent["a"], torch.tensor([[2.5], [1.0]], dtype=torch.float64))
    assert torch.allclose(sent["b"], torch.tensor([[3.0, 1.0], [1.3, 1.4]], dtype=torch.float64))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_an_update_that_is_not_finite_becomes_zero(bad: float) -> None:
    known = {"a": torch.tensor([1.0]), "b": torch.tensor([2.0, 3.0])}
    sent = Central().send(known, tree([bad, 2.0, 3.5]), [])
    assert sent["a"].tolist() == [[1.0]]
    assert sent["b"].tolist() == [[2.0, 3.0]]


def test_no_replacement_moves_an_update_further_than_its_sensitivity() -> None:
    privacy, rng = Central(dp_clip=0.7), np.random.default_rng(0)
    known = {"a": torch.zeros(1, dtype=torch.float64), "b": torch.zeros(3, dtype=torch.float64)}
    for scale in (0.1, 1.0, 100.0):
        one, other = (privacy.send(known, tree(list(scale * rng.normal(size=4))), []) for _ in range(2))
        gap = torch.cat([(one[name] - other[name]).flatten() for name in one]).norm()
        assert gap <= privacy.sensitivity + 1e-12
    opposite = [privacy.send(known, tree([sign * 9.0, 0.0, 0.0, 0.0]), []) for sign in (1, -1)]
    assert float((opposite[0]["a"] - opposite[1]["a"]).abs()) == pytest.approx(privacy.sensitivity)  # it is reached


def test_local_noise_has_the_stated_spread() -> None:
    privacy = Local(dp_clip=0.5, dp_noise=3.0)
    start = {"w": torch.zeros(20000, dtype=torch.float64)}
    sent = privacy.send(start, {"w": torch.zeros(2, 20000, dtype=torch.float64)}, [Secure(), Secure()])
    assert sent["w"].std(1).tolist() == pytest.approx([3.0, 3.0], rel=0.05)  # 3 · 2 · 0.5
    assert abs(float(torch.corrcoef(sent["w"])[0, 1])) < 0.05


def updates_of(*rows: list[float], sizes: list[int]) -> Updates:
    count = len(rows)
    return Updates(
        clients=torch.arange(count), model=Model(tree(*rows), {}), uploads={}, sizes=torch.tensor(sizes),
        steps=torch.ones(count), lr=0.1, epochs=1, population=9,
    )  # fmt: skip


def test_the_server_sees_only_the_noised_mean() -> None:
    start = Model({"a": torch.zeros(1, dtype=torch.float64), "b": torch.zeros(1, dtype=torch.float64)}, {})
    updates = updates_of([4.0, 0.0], [0.0, 8.0], sizes=[1, 3])
    weights = torch.tensor([0.25, 0.75], dtype=torch.float64)
    released = Central().release(start, updates, weights, Silence())
    assert released.model.params["a"].tolist() == [[1.0], [1.0]]
    assert released.model.params["b"].tolist() == [[6.0], [6.0]]


def test_central_noise_covers_the_largest_weight() -> None:
    start = Model({"w": torch.zeros(20000, dtype=torch.float64)}, {})
    updates = replace(updates_of([0.0, 0.0], [0.0, 0.0], sizes=[1, 3]), model=Model({"w": torch.zeros(2, 20000)}, {}))
    released = Central(dp_clip=2.0, dp_noise=1.5).release(start, updates, torch.tensor([0.25, 0.75]), Secure())
    assert float(released.model.params["w"][0].std()) == pytest.approx(1.5 * 4 * 0.75, rel=0.05)
    assert released.noise == 1.5 * 4 * 0.75


def test_the_noise_of_the_mean_of_noised_updates() -> None:
    privacy, weights = Local(dp_clip=2.0, dp_noise=1.5), torch.tensor([0.25, 0.75], dtype=torch.float64)
    start = {"w": torch.zeros(20000, dtype=torch.float64)}
    sent = privacy.send(start, {"w": torch.zeros(2, 20000, dtype=torch.float64)}, [Secure(), Secure()])
    updates = replace(updates_of([0.0, 0.0], [0.0, 0.0], sizes=[1, 3]), model=Model(sent, {}))
    released = privacy.release(Model(start, {}), updates, weights, Secure())
    assert released.noise == pytest.approx(1.5 * 4 * (0.25**2 + 0.75**2) ** 0.5)
    assert float((weights @ sent["w"]).std()) == pytest.approx(released.noise, rel=0.05)
    assert released.model is updates.model


def test_replacing_a_client_moves_the_mean_by_at_most_the_sensitivity() -> None:
    """One client's update goes from one end of the ball to the other; weights depend on sizes alone."""
    start = Model({"a": torch.zeros(1, dtype=torch.float64), "b": torch.zeros(1, dtype=torch.float64)}, {})
    privacy, weighting = Central(dp_clip=1.0), algorithms.build("fedavg").weighting
    means = []
    for own in (50.0, -50.0):
        sent = privacy.send(start.params, tree([0.3, 0.1], [own, 0.0]), [])
        updates = replace(updates_of([0.0, 0.0], [0.0, 0.0], sizes=[1, 3]), model=Model(sent, {}))
        weights = weighting.weigh(updates, None).weights
        means.append(privacy.release(start, updates, weights, Silence()).model.params["a"][0, 0])
    assert float(means[0] - means[1]) == pytest.approx(privacy.sensitivity * 0.75)


def one_worker(labels: list[int], predicted: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Return (Z, TP) and T of a worker with these samples."""
    table = np.zeros((3, 3), dtype=np.int64)
    np.add.at(table, (labels, predicted), 1)
    return np.concatenate([table.sum(0), np.diagonal(table)]), table.sum(1)


def test_no_worker_changes_its_report_by_more_than_the_sensitivity() -> None:
    """Every pair of two samples against every other pair: the bound 2M holds, and is reached."""
    privacy = Local(dp_samples=2)
    pairs = [(i, j) for i in range(3) for j in range(3)]
    reports = [one_worker(list(labels), list(found)) for labels in pairs for found in pairs]
    reported = np.stack([report for report, _ in reports])
    held = np.stack([labels for _, labels in reports])
    gaps = np.linalg.norm(reported[:, None] - reported[None], axis=-1)
    assert gaps.max() == pytest.approx(privacy.count_sensitivity)
    assert np.linalg.norm(held[:, None] - held[None], axis=-1).max() == pytest.approx(privacy.label_sensitivity)


def test_a_worker_evaluates_on_a_fixed_part_of_its_samples() -> None:
    privacy, held = Local(dp_samples=5), np.arange(40)
    judged = privacy.judged(held, seed=1, node=2)
    assert len(set(judged.tolist())) == 5
    assert judged.tolist() == privacy.judged(held, seed=1, node=2).tolist() != privacy.judged(held, 1, 3).tolist()
    assert privacy.judged(held[:4], seed=1, node=2).tolist() == [0, 1, 2, 3]


def counts_of(rng: np.random.Generator, rows: int, workers: int) -> ClassCounts:
    labels = torch.from_numpy(rng.integers(0, 9, (rows, workers, 3)))
    return ClassCounts(labels.roll(1, -1), labels // 2, labels)


def test_labels_get_the_same_noise_in_every_round_and_predictions_do_not() -> None:
    privacy, counts = Local(), counts_of(np.random.default_rng(0), 2, 2)
    clients, workers = np.array([3, 5]), np.array([[3, 7], [5, 7]])
    first, second = (privacy.report(counts, clients, workers, number, seeded(4)) for number in (1, 2))
    assert first.labels.equal(second.labels)
    assert (first.labels - counts.labels)[0, 1].equal((first.labels - counts.labels)[1, 1])  # worker 7 twice
    assert not first.predicted.equal(second.predicted)
    assert not (first.predicted - counts.predicted)[0, 1].equal((first.predicted - counts.predicted)[1, 1])


def test_combined_reports_are_possible_counts() -> None:
    rng = np.random.default_rng(1)
    noised = Local().report(counts_of(rng, 4, 3), np.arange(4), rng.integers(0, 9, (4, 3)), 1, seeded(0))
    combined = Local().combined(noised)
    assert combined.labels.shape == (4, 1, 3)
    assert bool((combined.correct <= torch.minimum(combined.labels, combined.predicted)).all())
    assert bool((combined.correct >= 0).all())


@pytest.mark.parametrize("sigma", [0.4, 1.0, 7.3])
@pytest.mark.parametrize("source", [Secure(), Seeded(np.random.default_rng(5))], ids=["secure", "seeded"])
def test_discrete_noise_follows_the_discrete_gaussian(sigma: float, source: Source) -> None:
    drawn = source.discrete(sigma, 40000)
    places = np.arange(-60, 61)
    density = np.exp(-(places**2) / (2 * sigma**2))
    expected = density / density.sum()
    found = np.array([(drawn == place).mean() for place in places])
    assert np.abs(found - expected).max() < 0.012


def test_secure_noise_on_real_numbers_is_normal_and_on_a_grid() -> None:
    values = np.linspace(-1, 1, 40001)
    step = 0.5 * 3.0 / 2**20  # noise · sensitivity / grid steps
    drawn = Secure().noised(values, noise=0.5, sensitivity=3.0)
    assert np.abs(drawn / step - np.rint(drawn / step)).max() < 1e-6  # no value keeps its own last bits
    rest = (drawn - values) / 1.5
    assert abs(rest.mean()) < 0.02
    assert np.abs(np.quantile(rest, [0.023, 0.159, 0.841, 0.977]) - [-2, -1, 1, 2]).max() < 0.06


def test_the_grid_s_noise_covers_what_rounding_adds() -> None:
    """Two vectors at distance Δ are at most Δ/s + √d steps apart after rounding; σ is `noise` times this."""

    class Recorded(Secure):
        sigma = 0.0

        def discrete(self, sigma: float, size: int) -> Any:
            self.sigma = sigma
            return np.zeros(size, dtype=np.int64)

    source, noise, sensitivity = Recorded(), 2.0, 0.25
    source.noised(np.zeros(400), noise, sensitivity)
    step = noise * sensitivity / 2**20
    assert source.sigma == pytest.approx(noise * (sensitivity / step + 20))


PRIVATE: dict[str, Any] = {"name": "local", "dp_clip": 0.3, "dp_noise": 0.2, "dp_counts": 0.1}


@pytest.mark.parametrize("method", ["fedavg", "scaffold", "feddyn", "fedsat", "moon"])
def test_the_engines_send_the_same_noised_updates(method: str) -> None:
    local = {"privacy": privacies.build(PRIVATE)}
    engines = [make_engine(algorithms.build(method), engine=kind, local=local) for kind in (SequentialEngine, stacked)]
    one, other = (run_rounds(engine, 3)[0].server.model.params for engine in engines)
    assert furthest(one, other) < 1e-9
    assert furthest(one, engines[0].initial_model.params) > 0.05


def test_no_loss_leaves_a_private_client() -> None:
    engine = make_engine(algorithms.build("fedavg"), local={"privacy": Local()})
    assert len(run_rounds(engine, 1)[1][0].losses) == 0


def test_scaffold_uploads_what_follows_from_its_noised_model() -> None:
    """c_k⁺ − c_k = (Θ − θ_k)/(η K) − c, from the model that was sent; the exact c_k stays with the client."""
    algorithm = algorithms.build("scaffold")
    engine = make_engine(algorithm, local={"privacy": privacies.build(PRIVATE)})
    training, _ = run_rounds(engine, 2)
    trained = engine.train(training.server, np.array([0, 1]), training.states, 3)
    updates, control = trained.updates, training.server.memory["control"]
    along = step_direction(training.server.model.params, updates.model.params, updates, updates.steps)
    expected = {name: along[name] - control[name] for name in along}
    assert furthest(updates.uploads["control_change"], expected) < 1e-9


def test_the_known_part_of_an_update_is_not_clipped() -> None:
    """Without own samples, FedSat's client moves along the server's v_t; with a tiny clip, that is what remains."""
    algorithm = algorithms.build("fedsat")
    engine = make_engine(algorithm, local={"privacy": Central(dp_clip=1e-9)})
    memory = algorithm.initial_memory(engine.initial_model)
    memory["direction"] = {name: torch.ones_like(tensor) for name, tensor in engine.initial_model.params.items()}
    server = fedsat.algorithms.Server(engine.initial_model, memory)
    updates = engine.train(server, np.array([0]), {}, 1).updates
    steps, start = int(updates.steps[0]), engine.initial_model.params
    for name, tensor in updates.model.params.items():
        assert torch.allclose(tensor[0], start[name] - 0.1 * steps * algorithm.gamma, atol=1e-8)


def test_real_nodes_add_their_noise_themselves() -> None:
    counts = counts_of(np.random.default_rng(0), 2, 2)
    remote = Protection(Local(), secure, on_nodes=True)
    assert remote.report(counts, np.array([0, 1]), np.array([[0, 2], [1, 2]]), 1) is counts


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"algorithm": "elastic", "privacy": "local"}, "clients also upload sensitivity"),
        ({"algorithm": "fedlada", "privacy": "local"}, "clients also upload second_moment"),
        ({"algorithm": {"name": "scaffold", "controls": "I"}, "privacy": "local"}, "also upload control_change"),
        ({"algorithm": "feddisco", "privacy": "local"}, "exact class counts"),
        ({"algorithm": "fedsat:robust", "privacy": "local"}, "mostly noise"),
        ({"algorithm": "fedsat", "privacy": "central"}, "its weights depend on the clients' data"),
        ({"algorithm": {"name": "fedavg", "aggregator": "median"}, "privacy": "central"}, "not the mean"),
        ({"algorithm": "scaffold", "privacy": "central"}, "more of the updates than their mean"),
        ({"algorithm": "fedavg", "budget": "8,1e-5"}, "budget is set, but privacy is 'none'"),
        ({"algorithm": "fedsat", "privacy": "local", "report_at_least": 5}, "noise hides rare classes"),
        ({"algorithm": "fedavg", "privacy": "local", "budget": "8"}, "it must be ε,δ such as 8,1e-5"),
        ({"algorithm": "fedavg", "privacy": "local", "budget": "8,2"}, "δ between 0 and 1"),
    ],
)
def test_what_cannot_be_private_is_refused_with_the_reason(settings: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        Config.of(settings)


def test_running_statistics_are_refused() -> None:
    with pytest.raises(UsageError, match="running statistics"):
        fedsat.run(dataset="mnist-mini", model="resnet8", algorithm="fedavg", privacy="local", rounds=1)


def test_every_method_says_whether_its_uploads_can_be_private() -> None:
    """A method either uploads nothing but its model, names what follows from it, or is refused."""
    refused = {name for name in algorithms if Local().refuse(algorithms.build(name)) is not None}
    assert refused == {"elastic", "fedlada", "feddisco", "fedsat:robust"}
    central = {name for name in algorithms if Central().refuse(algorithms.build(name)) is None}
    assert central == {"fedavg", "fedprox", "moon", "fedlc", "fedrs", "fedntd", "fedvls", "fedavgm", "fedacg", "feddyn",
                       "fedsam", "fedlesam"}  # fmt: skip


def test_replaced_updates_leave_feddyn_as_it_is_without_noise() -> None:
    """FedDyn's sum over the clients follows from the mean, because its weights are uniform."""
    algorithm, finals = algorithms.build("feddyn"), []
    for privacy in (privacies.build("none"), Central(dp_clip=1e6)):
        engine = make_engine(algorithm, local={"privacy": privacy})
        engine.protection = Protection(privacy, quiet)
        finals.append(run_rounds(engine, 3)[0].server)
    assert furthest(finals[0].model.params, finals[1].model.params) < 1e-9
    assert furthest(finals[0].memory["mean_dual"], finals[1].memory["mean_dual"]) < 1e-9
