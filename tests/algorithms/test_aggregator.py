"""Median, trimmed mean, multi-Krum and the guarded mean: calculations by hand, and every method with each of them."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import Tensor

from fedsat.algorithms import Algorithm, FedAvg, FedDyn, Model, Scaffold, Server, aggregators, algorithms
from fedsat.algorithms.aggregator import (
    Aggregator,
    CoordinateMedian,
    DampedMean,
    GuardedMean,
    MultiKrum,
    TrimmedMean,
    longest_row,
    suspected,
    usual_length,
)
from fedsat.algorithms.weighting import Uniform
from fedsat.errors import UsageError
from tests.support.byhand import after_rounds, make_updates, one, same, scalar, values


def weights(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


FIFTH = weights(0.2, 0.2, 0.2, 0.2, 0.2)


def test_the_median_takes_each_coordinate_for_itself() -> None:
    tree = {"w": torch.tensor([[1.0, 9.0], [2.0, -5.0], [100.0, 7.0]], dtype=torch.float64)}
    assert CoordinateMedian().centre(tree, weights(0.8, 0.1, 0.1))["w"].tolist() == [2.0, 7.0]


def test_the_median_of_an_even_number_is_the_mean_of_the_two_in_the_middle() -> None:
    assert values(CoordinateMedian().centre(one(4, 1, 2, 100), weights(0.25, 0.25, 0.25, 0.25))) == [3.0]


def test_clients_without_weight_do_not_count() -> None:
    # Without the client at 0, the middle of 1, 2, 9 is 2, and 9 and 1 are trimmed.
    tree, given = one(0, 1, 2, 9), weights(0, 0.5, 0.3, 0.2)
    assert values(CoordinateMedian().centre(tree, given)) == [2.0]
    assert values(TrimmedMean(hostile=0.3).centre(tree, given)) == [2.0]


def test_the_trimmed_mean_leaves_out_both_ends() -> None:
    # 20 % of five: one at either end. (2 + 3 + 7)/3 = 4.
    assert values(TrimmedMean(hostile=0.2).centre(one(7, -50, 3, 1000, 2), FIFTH)) == [4.0]
    assert values(TrimmedMean(hostile=0).centre(one(1, 2, 6), weights(0.5, 0.25, 0.25))) == [3.0]


def test_multi_krum_by_hand() -> None:
    # Updates 0, 1, 3, 10, 11 with one malicious client: 5 − 1 − 2 = 2 neighbours, 4 chosen.
    #   scores: 0: 1+9 = 10   1: 1+4 = 5   3: 4+9 = 13   10: 1+49 = 50   11: 1+64 = 65  → 11 is left out
    kept = MultiKrum(hostile=0.2).select(one(0, 1, 3, 10, 11), FIFTH)
    assert kept.tolist() == pytest.approx([0.25, 0.25, 0.25, 0.25, 0])
    # Two malicious clients: 1 neighbour, 3 chosen; 0: 1, 1: 1, 3: 4, 10: 1, 11: 1. Of ties, the first are chosen.
    assert MultiKrum(hostile=0.4).select(one(0, 1, 3, 10, 11), FIFTH).tolist() == pytest.approx(
        [1 / 3, 1 / 3, 0, 1 / 3, 0]
    )


def test_multi_krum_keeps_the_chosens_weights_in_proportion() -> None:
    kept = MultiKrum(hostile=0.25).select(one(0, 1, 100, 1), weights(0.1, 0.2, 0.6, 0.1))
    assert kept.tolist() == pytest.approx([0.25, 0.5, 0, 0.25])


def test_an_update_that_is_far_from_the_others_in_one_tensor_weighs_less() -> None:
    # "a" is the same for all. The median of "b" is 7, and the distances from it are 1, 1, 1, 0 and 4. Beyond 2 medians:
    # (2/4)⁴ = 1/16.
    guarded = GuardedMean(longest=9, repeats=0, against=0)
    kept = guarded.select({"a": one(30, 30, 30, 30, 30)["w"], "b": one(6, 8, 8, 7, 3)["w"]}, FIFTH)
    assert kept.tolist() == pytest.approx([16 / 65, 16 / 65, 16 / 65, 16 / 65, 1 / 65])


def test_an_update_with_a_long_row_weighs_less() -> None:
    # The median is zero in every coordinate. The matrices have the length 5 and the longest rows 3, 3, 3, 4 and 5, in
    # any place: 5 is beyond 1.5 medians, so (1.5 · 3/5)⁴ = 0.6561; 4 is not. The bias has no rows.
    def matrix(*rows: tuple[float, float]) -> list[tuple[float, float]]:
        return [*rows, *[(0.0, 0.0)] * (9 - len(rows))]

    none, odd = [(0.0, 0.0)] * 3, 7**0.5
    clients = [
        matrix((0, 3), (3, 0), (odd, 0)),
        matrix(*none, (0, -3), (0, odd), (3, 0)),
        matrix(*none, *none, (3, 0), (0, 3), (-odd, 0)),
        matrix((0, 0), (0, 4), (0, 0), (-3, 0)),
        matrix((0, 0), (0, 0), (-3, -4)),
    ]
    tree = {"w": torch.tensor(clients, dtype=torch.float64), "b": torch.ones(5, 3, dtype=torch.float64)}
    assert longest_row(tree["w"]).tolist() == pytest.approx([3, 3, 3, 4, 5])
    assert GuardedMean(part=1.5).evenness(tree).tolist() == pytest.approx([1, 1, 1, 1, 0.6561])


def test_what_all_clients_share_hides_no_part() -> None:
    # The median is 101, and the distances from it are 2, 0, 2, 0 and 7, which is 3.5 times the median distance.
    shared = {"w": 100 + one(-1, 1, -1, 1, 8)["w"]}
    assert GuardedMean().evenness(shared).tolist() == pytest.approx([1, 1, 1, 1, (2 / 3.5) ** 4])


def test_the_usual_length_by_hand() -> None:
    # The median of 1, 2, 10, 11, 12 is 10. Weights 2, 2, 1 of the first three: half of the weight is at or below 2.
    lengths = weights(1, 2, 10, 11, 12)
    assert float(usual_length(lengths, FIFTH)) == 10
    assert float(usual_length(lengths, weights(0.4, 0.4, 0.2, 0, 0))) == 2
    assert float(usual_length(lengths, weights(0, 0, 0.2, 0.4, 0.4))) == 10  # too much weight on long ones
    assert float(usual_length(weights(0, 0, 4, 8), weights(0.4, 0.4, 0.1, 0.1))) == 4  # zeros do not count
    assert float(usual_length(weights(0, 4, 8), weights(1, 0, 0))) == 6
    assert float(usual_length(weights(0, 0), weights(0.5, 0.5))) == 0


@pytest.mark.parametrize("given", [FIFTH, weights(0.4, 0.4, 0.2, 0, 0)])
def test_a_majority_of_long_updates_needs_most_of_the_weight_too(given: Tensor) -> None:
    # With equal weights, 10 is usual, and the short ones weigh (0.1/0.2)² = 1/4. If a filter found the long ones, 1 is
    # usual, and the third weighs (1.5/10)²; those without weight stay without.
    kept = DampedMean().select(one(1, 1, 10, 10, 10), given)
    expected = [1 / 14, 1 / 14, 4 / 14, 4 / 14, 4 / 14] if given is FIFTH else [0.4, 0.4, 0.2 * 0.0225, 0, 0]
    assert kept.tolist() == pytest.approx([share / sum(expected) for share in expected])


def test_updates_that_repeat_share_one_weight() -> None:
    # All have the length 5. Squared distances 0, 2, 10, 10, 10, 20, 20, 20, 50, 50: the median is 15. Closer than
    # 0.04 · 15 are only the last two.
    tree = {"w": torch.tensor([[3.0, 4.0], [4.0, 3.0], [5.0, 0.0], [0.0, 5.0], [0.0, 5.0]], dtype=torch.float64)}
    assert GuardedMean(against=0).select(tree, FIFTH).tolist() == pytest.approx([0.25, 0.25, 0.25, 0.125, 0.125])
    assert GuardedMean(against=0, repeats=0).select(tree, FIFTH).tolist() == pytest.approx([0.2] * 5)


def test_updates_against_the_others_weigh_less() -> None:
    # All have the length 1. The median is (1, 0). The cosines are 1, 1, 1 and 0.25; below half of the usual one, 1, the
    # weight is multiplied by 0.25/0.5.
    guarded, quarter = GuardedMean(repeats=0), weights(0.25, 0.25, 0.25, 0.25)
    aside = {"w": torch.tensor([[1, 0], [1, 0], [1, 0], [0.25, 0.9375**0.5]], dtype=torch.float64)}
    assert guarded.select(aside, quarter).tolist() == pytest.approx([2 / 7, 2 / 7, 2 / 7, 1 / 7])
    assert guarded.select(one(1, 1, 1, -1), quarter).tolist() == pytest.approx([1 / 3, 1 / 3, 1 / 3, 0])
    assert guarded.select(one(1, -1), weights(0.5, 0.5)).tolist() == pytest.approx([0.5, 0.5])  # no direction


@pytest.mark.parametrize("clients", [1, 2, 3])
@pytest.mark.parametrize("name", list(aggregators))
def test_few_clients_are_enough(name: str, clients: int) -> None:
    aggregator, given = aggregators.build(name), torch.full((clients,), 1 / clients, dtype=torch.float64)
    tree = one(*range(1, clients + 1))
    kept = aggregator.select(tree, given)
    assert float(kept.sum()) == pytest.approx(1)
    assert 1 <= values(aggregator.centre(tree, kept))[0] <= clients


def test_suspects_are_the_share_rounded_up_but_fewer_than_half() -> None:
    assert [suspected(0.2, clients) for clients in (1, 2, 3, 5, 6, 10, 15)] == [0, 0, 1, 1, 2, 2, 3]
    assert [suspected(0.49, clients) for clients in (2, 4, 15)] == [0, 1, 7]
    with pytest.raises(UsageError, match="hostile"):
        TrimmedMean(hostile=0.5)


def test_a_sum_is_the_centre_times_the_number_of_clients() -> None:
    # Σ of 1, 2, 600 is 603; three times the median is 6. Multi-Krum leaves 600 out: 3 · 1.5.
    tree, given = one(1, 2, 600), weights(0.2, 0.3, 0.5)
    assert values(Aggregator().total(tree, given)) == [603.0]
    assert values(CoordinateMedian().total(tree, given)) == [6.0]
    krum = MultiKrum(hostile=0.3)
    assert values(krum.total(tree, krum.select(tree, given))) == pytest.approx([4.5])


def test_scaffold_and_feddyn_use_the_aggregator_for_their_state() -> None:
    # Θ = 0, updates 1, 2, 90; N = 3. Median 2; the sum counts as 3 · 2, so λ̄ = 2 and Θ = 2 + 2.
    updates = make_updates(one(1, 2, 90), [1, 1, 1], 0.1, uploads={"control_change": one(-1, -2, -90)})
    third = Uniform().weigh(updates, None).weights
    dyn = FedDyn(aggregator=CoordinateMedian())
    after = dyn.aggregate(Server(Model(scalar(0), {}), {"mean_dual": scalar(0)}), updates, third)
    assert (values(after.memory["mean_dual"]), values(after.model.params)) == ([2.0], [4.0])
    scaffold = Scaffold(aggregator=CoordinateMedian())
    after = scaffold.aggregate(Server(Model(scalar(0), {}), {"control": scalar(0)}), updates, third)
    assert (values(after.memory["control"]), values(after.model.params)) == ([-2.0], [2.0])


def test_buffers_are_aggregated_alike() -> None:
    buffers = {"mean": torch.tensor([[1.0], [2.0], [900.0]]), "count": torch.tensor([1, 5, 3])}
    updates = make_updates(one(0, 0, 0), [1, 1, 1], 0.1, model=Model(one(0, 0, 0), buffers))
    after = FedAvg(aggregator=CoordinateMedian()).aggregate(
        Server(Model(scalar(0), {})), updates, Uniform().weigh(updates, None).weights
    )
    assert after.model.buffers["mean"].tolist() == [2.0]
    assert int(after.model.buffers["count"]) == 5


@functools.cache  # every aggregator is compared with the same mean
def trained(method: str, aggregator: str) -> Model:
    algorithm: Algorithm = algorithms.build({"name": method, "aggregator": aggregator})
    return after_rounds(algorithm, rounds=2, per_round=4)


@pytest.mark.parametrize("aggregator", [name for name in aggregators if name != "mean"])
@pytest.mark.parametrize("method", list(algorithms))
def test_every_method_accepts_every_aggregator(method: str, aggregator: str) -> None:
    robust = trained(method, aggregator)
    assert all(bool(torch.isfinite(tensor).all()) for tensor in robust.params.values())
    if aggregator not in ("damped-mean", "guarded-mean"):  # in a small federation, no update may be unusual enough
        assert not same(robust, trained(method, "mean"))


@pytest.mark.parametrize("aggregator", [DampedMean(), GuardedMean()])
def test_clients_that_did_not_move_keep_their_weight_if_a_filter_left_no_others(aggregator: DampedMean) -> None:
    updates = {"w": torch.tensor([[0.0, 0.0], [1.0, 1.0], [1.0, 0.9]])}
    assert aggregator.select(updates, torch.tensor([1.0, 0.0, 0.0])).tolist() == [1, 0, 0]


def test_more_distances_than_quantile_accepts() -> None:
    """torch.quantile refuses more than 2²⁴ values; a round of 4,200 clients has more distances."""
    draw = torch.Generator().manual_seed(0)
    updates = {"w": torch.randn(4200, 2, generator=draw)}
    assert int(GuardedMean().crowd(updates).min()) >= 1
