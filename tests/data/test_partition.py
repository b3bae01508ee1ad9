"""Properties of partitions, for all labels, sizes and seeds; impossible settings are refused."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fedsat.data import Partition, make_partition, partitions
from fedsat.data.hsu import draw_samples
from fedsat.data.label_skew import fill_empty, spread, trade
from fedsat.data.partition import apportion
from fedsat.errors import DataError, UsageError

SEEDED = ("iid", "quantity", "ls", "lsmc", "lqsmc", "hsu", "shards")
MANY = settings(max_examples=60, deadline=None)


@st.composite
def labelled(draw: st.DrawFn) -> tuple[np.ndarray, int]:
    """Draw labels of 1 to 12 classes, each of which occurs, perhaps very unevenly."""
    counts = draw(st.lists(st.integers(1, 60), min_size=1, max_size=12))
    labels = np.repeat(np.arange(len(counts)), counts)
    return np.random.default_rng(draw(st.integers(0, 9))).permutation(labels), len(counts)


def counts_of(owners: np.ndarray, labels: np.ndarray, clients: int, classes: int) -> np.ndarray:
    table = np.zeros((clients, classes), np.int64)
    np.add.at(table, (owners, labels), 1)
    return table


def check_promises(owners: np.ndarray, labels: np.ndarray, clients: int, classes: int) -> np.ndarray:
    """Check that every sample has one owner, every client a sample, every class a client; return the counts."""
    assert owners.shape == labels.shape
    table = counts_of(owners, labels, clients, classes)
    assert (table.sum(axis=1) > 0).all()
    assert (table.sum(axis=0) == np.bincount(labels, minlength=classes)).all()
    return table


@given(labelled(), st.integers(1, 80), st.floats(1e-8, 1e8), st.booleans(), st.integers(0, 99))
@MANY
def test_label_skew(data, clients: int, beta: float, balanced: bool, seed: int) -> None:
    labels, classes = data
    assume(clients <= len(labels))
    spec = {"name": "ls", "beta": beta, "balanced": balanced}
    check_promises(make_partition(spec, labels, classes, clients, seed), labels, clients, classes)


@given(labelled(), st.integers(1, 80), st.floats(1e-8, 1e8), st.integers(0, 99))
@MANY
def test_iid_and_quantity(data, clients: int, beta: float, seed: int) -> None:
    labels, classes = data
    assume(clients <= len(labels))
    even = make_partition("iid", labels, classes, clients, seed)
    sizes = check_promises(even, labels, clients, classes).sum(axis=1)
    assert sizes.max() - sizes.min() <= 1
    uneven = make_partition({"name": "quantity", "beta": beta}, labels, classes, clients, seed)
    check_promises(uneven, labels, clients, classes)


@given(labelled(), st.integers(1, 40), st.integers(1, 12), st.floats(1e-3, 100), st.integers(0, 99))
@MANY
def test_missing_classes(data, clients: int, each: int, skew: float, seed: int) -> None:
    """LSMC gives exactly C classes to every client, LQSMC at least C, whenever that is possible."""
    labels, classes = data
    counts = np.bincount(labels)
    places = np.minimum(counts, clients).sum()
    possible = clients <= len(labels) and each <= classes <= clients * each <= places
    for name in ("lsmc", "lqsmc"):
        spec = {"name": name, "classes_per_client": each, "skew": skew}
        if not possible:
            with pytest.raises(UsageError):
                make_partition(spec, labels, classes, clients, seed)
            continue
        table = check_promises(make_partition(spec, labels, classes, clients, seed), labels, clients, classes)
        held = (table > 0).sum(axis=1)
        assert (held == each).all() if name == "lsmc" else (held >= each).all()
        if name == "lsmc":  # as even as the samples allow: a class with spare samples has at most one client less
            holders = (table > 0).sum(axis=0)
            assert holders[holders < np.minimum(counts, clients)].min(initial=clients) >= holders.max() - 1


@given(labelled(), st.integers(1, 80), st.floats(1e-8, 1e8), st.integers(0, 99))
@MANY
def test_hsu(data, clients: int, beta: float, seed: int) -> None:
    """All clients have the same size, whatever their mixes are."""
    labels, classes = data
    assume(clients <= len(labels))
    owners = make_partition({"name": "hsu", "beta": beta}, labels, classes, clients, seed)
    sizes = check_promises(owners, labels, clients, classes).sum(axis=1)
    assert sizes.max() - sizes.min() <= 1


@given(labelled(), st.integers(1, 40), st.integers(1, 5), st.integers(0, 99))
@MANY
def test_shards(data, clients: int, each: int, seed: int) -> None:
    """Sizes differ by at most one for each shard, and all shards together cross each border of classes once."""
    labels, classes = data
    spec = {"name": "shards", "shards_per_client": each}
    assume(clients <= len(labels))
    if clients * each > len(labels):
        with pytest.raises(UsageError, match="fewer shards per client"):
            make_partition(spec, labels, classes, clients, seed)
        return
    table = check_promises(make_partition(spec, labels, classes, clients, seed), labels, clients, classes)
    sizes = table.sum(axis=1)
    assert sizes.max() - sizes.min() <= each
    assert (table > 0).sum() <= clients * each + classes - 1


def test_shards_by_hand() -> None:
    """Eight samples in four shards 00, 00, 11, 11; with two shards each, a client has one class or half of both."""
    labels = np.array([0, 1, 0, 1, 0, 1, 0, 1])
    seen = set()
    for seed in range(20):
        owners = make_partition("shards", labels, 2, 2, seed)
        seen.add(tuple(counts_of(owners, labels, 2, 2)[0].tolist()))
        alone = make_partition({"name": "shards", "shards_per_client": 1}, labels, 2, 4, seed)
        assert sorted(counts_of(alone, labels, 4, 2).tolist()) == [[0, 2], [0, 2], [2, 0], [2, 0]]
    assert seen == {(4, 0), (2, 2), (0, 4)}


def test_hsu_by_hand() -> None:
    """Clients 0 and 1 want four samples of class 0, which has two; they take what client 2 leaves of class 1."""
    mixes = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    sizes, counts = np.array([2, 2, 2]), np.array([2, 4])
    seen = set()
    for seed in range(20):
        given = draw_samples(mixes, sizes, counts, np.random.default_rng(seed))
        assert given[2].tolist() == [0, 2]
        assert given[:2].sum(axis=0).tolist() == [2, 2]
        assert given[:2].sum(axis=1).tolist() == [2, 2]
        seen.add(int(given[0, 0]))
    assert seen == {0, 1, 2}  # the scarce class is granted at random, not to the first client


def test_hsu_mixes_are_those_of_the_prior() -> None:
    """With a large β, every client has the overall mix; with β → 0, a single class as long as it has samples left."""
    labels = np.repeat([0, 1, 2], [6000, 3000, 1000])
    even = counts_of(make_partition({"name": "hsu", "beta": 1e8}, labels, 3, 10, 0), labels, 10, 3)
    assert np.abs(even / 1000 - [0.6, 0.3, 0.1]).max() < 0.06  # four deviations of a binomial share
    single = counts_of(make_partition({"name": "hsu", "beta": 1e-6}, labels, 3, 10, 0), labels, 10, 3)
    assert (single.max(axis=1) == 1000).mean() > 0.5


@pytest.mark.parametrize("name", SEEDED)
def test_same_seed_same_split(name: str) -> None:
    labels = np.random.default_rng(0).integers(0, 10, 2000)
    first, again, other = (make_partition(name, labels, 10, 50, seed) for seed in (3, 3, 4))
    np.testing.assert_array_equal(first, again)
    assert (first != other).mean() > 0.5


def test_missing_classes_are_mixed() -> None:
    """All 45 pairs of 10 classes occur among 1,000 clients, none much too often."""
    labels = np.repeat(np.arange(10), 1000)
    owners = make_partition("lsmc", labels, 10, 1000, 0)
    held = counts_of(owners, labels, 1000, 10) > 0
    together = (held.T.astype(int) @ held)[np.triu_indices(10, 1)]
    assert together.sum() == 1000
    assert together.min() > 5  # mean 22, deviation about 5
    assert together.max() < 45


@given(st.integers(2, 30), st.integers(1, 8), st.integers(0, 20))
@MANY
def test_trades_keep_degrees(clients: int, each: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = np.stack([rng.permutation(8)[:each] for _ in range(clients)])
    after = trade(rows.copy(), rng)
    assert all(len(set(row)) == each for row in after.tolist())
    assert np.bincount(after.ravel(), minlength=8).tolist() == np.bincount(rows.ravel(), minlength=8).tolist()


def test_smaller_parameters_are_more_uneven() -> None:
    labels = np.random.default_rng(0).integers(0, 10, 20_000)

    def largest_share(spec: dict[str, object]) -> float:
        table = counts_of(make_partition(spec, labels, 10, 50, 0), labels, 50, 10)
        return float(np.mean(table.max(axis=1) / table.sum(axis=1)))

    for name, option in (("ls", "beta"), ("lsmc", "skew"), ("lqsmc", "skew"), ("hsu", "beta")):
        uneven, middle, even = (largest_share({"name": name, option: value}) for value in (0.1, 1, 100))
        assert uneven > middle + 0.1
        assert middle > even + 0.1


def test_balancing_bounds_sizes() -> None:
    """With balancing, a client stops at n/N plus its share of one class; without it, β = 0.05 goes far beyond."""
    labels = np.repeat(np.arange(10), 1000)
    balanced, free = (
        np.bincount(make_partition({"name": "ls", "beta": 0.05, "balanced": b}, labels, 10, 20, 0))
        for b in (True, False)
    )
    assert balanced.max() <= 500 + 1000
    assert free.max() > balanced.max()


@pytest.mark.parametrize(("classes", "each"), [(10, 2), (10, 6), (100, 20)])
def test_missing_classes_leave_sizes_even_unless_skewed_ones_are_asked_for(classes: int, each: int) -> None:
    labels = np.repeat(np.arange(classes), 5000 // (classes // 10))
    spread = {}
    for sizes in ("even", "skewed"):
        spec = {"name": "lsmc", "classes_per_client": each, "sizes": sizes}
        owned = np.bincount(make_partition(spec, labels, classes, 100, 0))
        spread[sizes] = owned.std() / owned.mean()
    assert spread["even"] < 0.02
    assert spread["skewed"] > 0.2


def test_quantity_grows_with_classes() -> None:
    labels = np.repeat(np.arange(10), 5000)
    table = counts_of(make_partition("lqsmc", labels, 10, 200, 0), labels, 200, 10)
    held = (table > 0).sum(axis=1)
    assert set(held) == set(range(2, 11))
    per_class = table.sum(axis=1) / held
    assert per_class.max() < 1.1 * per_class.min()  # as good as proportional
    assert np.mean(table.max(axis=1) / table.sum(axis=1)) > 0.4  # and yet one class leads in most clients


def test_quantity_skew_leaves_labels_alone() -> None:
    labels = np.random.default_rng(0).integers(0, 4, 40_000)
    table = counts_of(make_partition("quantity", labels, 4, 20, 0), labels, 20, 4)
    sizes = table.sum(axis=1)
    assert sizes.max() > 4 * np.median(sizes)
    large = table[sizes > 1000]
    assert np.abs(large / large.sum(axis=1, keepdims=True) - 0.25).max() < 0.05


@pytest.mark.parametrize("name", SEEDED)
def test_a_hundred_thousand_clients(name: str) -> None:
    labels = np.random.default_rng(0).integers(0, 10, 600_000)
    start = time.perf_counter()
    owners = make_partition(name, labels, 10, 100_000, 0)
    assert time.perf_counter() - start < 20  # well under one second on a desktop machine
    assert np.bincount(owners, minlength=100_000).min() >= 1


@pytest.mark.parametrize(
    ("spec", "clients", "words"),
    [
        ("iid", 0, "clients is 0"),
        ("iid", 101, "101 clients cannot share 100 samples"),
        ({"name": "lsmc", "classes_per_client": 6}, 20, "cannot hold 6 classes: there are 5"),
        ({"name": "lqsmc", "classes_per_client": 6}, 20, "cannot hold 6 classes: there are 5"),
        ({"name": "lsmc", "classes_per_client": 2}, 2, "use at least 3 clients, or classes_per_client ≥ 3"),
        ({"name": "lsmc", "classes_per_client": 2}, 60, r"120 places .* can fill only 100"),
        ({"name": "lsmc", "classes_per_client": 0}, 10, "at least 1"),
        ({"name": "shards", "shards_per_client": 6}, 20, r"120 shards .* one of 100 samples; take fewer"),
        ({"name": "hsu", "beta": 0}, 10, "above 0"),
        ({"name": "ls", "beta": 0}, 10, "above 0"),
        ({"name": "ls", "beta": float("nan")}, 10, "above 0"),
        ({"name": "file"}, 10, "needs a value for path"),
        ("dirichlett", 10, "unknown partition"),
        ("lsmcc", 10, "did you mean 'lsmc'"),
    ],
)
def test_impossible_settings(spec: object, clients: int, words: str) -> None:
    labels = np.repeat(np.arange(5), 20)
    with pytest.raises(UsageError, match=words):
        make_partition(spec, labels, 5, clients, 0)


def test_scarce_classes_get_fewer_holders() -> None:
    assert spread(12, np.array([1, 10, 10, 10]), np.random.default_rng(0)).tolist()[0] == 1
    assert sorted(spread(12, np.array([1, 10, 10, 10]), np.random.default_rng(0)).tolist()) == [1, 3, 4, 4]


def test_the_largest_give_to_the_empty() -> None:
    owners = fill_empty(np.array([0] * 5 + [1] * 3), 4, np.random.default_rng(0))
    assert np.bincount(owners).tolist() == [3, 3, 1, 1]


@given(st.integers(0, 1000), st.lists(st.floats(0, 1), min_size=1, max_size=20))
@MANY
def test_apportion(total: int, weights: list[float]) -> None:
    assume(sum(weights) > 0.01)
    shares = np.array(weights) / sum(weights)
    parts = apportion(total, shares)
    assert parts.sum() == total
    assert parts.min() >= 0
    assert np.abs(parts - shares * total).max() <= 1.01


class Fixed(Partition):
    """A user-defined partition."""

    def __init__(self, owners: list[int]) -> None:
        self.given = np.array(owners)

    def owners(self, labels, classes, clients, rng):
        return self.given


@pytest.mark.parametrize(
    ("owners", "words"),
    [
        ([0, 1, 0], r"int64 \[3\] instead of int64 \[4\]"),
        ([0, 1, 2, 0], "outside 0 to 1"),
        ([0, 0, 0, 0], "client 1 empty"),
    ],
)
def test_a_user_defined_partition_is_checked(owners: list[int], words: str) -> None:
    with pytest.raises(DataError, match=words):
        make_partition(Fixed(owners), np.zeros(4, int), 1, 2, 0)
    assert make_partition(Fixed([0, 1, 1, 0]), np.zeros(4, int), 1, 2, 0).tolist() == [0, 1, 1, 0]


def test_labels_and_classes_must_agree() -> None:
    with pytest.raises(DataError, match="labels run from 0 to 3; 3 classes have 0 to 2"):
        make_partition("iid", np.arange(4), 3, 2, 0)
    with pytest.raises(DataError, match="class 1 has no sample"):
        make_partition("iid", np.array([0, 0, 2]), 3, 2, 0)


class TestFile:
    LABELS = np.array([0, 1, 0, 1, 0])

    def read(self, path: Path, clients: int = 2) -> list[int]:
        return make_partition({"name": "file", "path": str(path)}, self.LABELS, 2, clients, 0).tolist()

    def test_three_formats(self, tmp_path: Path) -> None:
        (tmp_path / "p.csv").write_text("client,index\n1,0\n0,1\n1,2\n0,3\n1,4\n")
        (tmp_path / "p.json").write_text("[[1, 3], [4, 2, 0]]")
        np.save(tmp_path / "p.npy", [[1, 0], [0, 1], [1, 2], [0, 3], [1, 4]])
        for name in ("p.csv", "p.json", "p.npy"):
            assert self.read(tmp_path / name) == [1, 0, 1, 0, 1]

    @pytest.mark.parametrize(
        ("rows", "words"),
        [
            ([[1, 0], [0, 1], [1, 2], [0, 3], [1, 4], [0, 4]], "sample 4 is listed more than once"),
            ([[1, 0], [0, 1], [1, 2], [0, 3]], "sample 4 is not listed"),
            ([[1, 0], [0, 1], [1, 2], [0, 3], [1, 5]], "index 5 is outside 0 to 4"),
            ([[1, 0], [0, 1], [1, 2], [0, 3], [-1, 4]], "client -1 is negative"),
            ([], "contains no pairs"),
        ],
    )
    def test_refused(self, tmp_path: Path, rows: list[list[int]], words: str) -> None:
        (tmp_path / "p.csv").write_text("client,index\n" + "".join(f"{a},{b}\n" for a, b in rows))
        with pytest.raises(DataError, match=rf"p\.csv: {words}"):
            self.read(tmp_path / "p.csv")

    def test_clients_must_agree(self, tmp_path: Path) -> None:
        (tmp_path / "p.json").write_text("[[0, 1], [2, 3, 4]]")
        with pytest.raises(UsageError, match="is for 2 clients; set clients to that number, not to 3"):
            self.read(tmp_path / "p.json", clients=3)

    @pytest.mark.parametrize(
        ("name", "text", "words"),
        [
            ("p.csv", "0,0\n", "expected the header client,index"),
            ("p.csv", "client,index\n0,0\n0,x\n", "line 3 is not a pair of whole numbers: 0,x"),
            ("p.csv", "client,index\n0,0,0\n", "line 2 is not a pair"),
            ("p.csv", f"client,index\n0,{10**30}\n", "too large"),
            ("p.csv", "", "found nothing"),
            ("p.json", "[[0, 1], []]", "client 1 has no sample"),
            ("p.json", "[[0, 1], 3]", "one list of indices for each client"),
            ("p.json", "[[0, 1.5]]", "whole numbers"),
            ("p.json", "[[0, 1", "p.json"),
            ("p.npy", "not an array", "p.npy"),
        ],
    )
    def test_foreign_files(self, tmp_path: Path, name: str, text: str, words: str) -> None:
        (tmp_path / name).write_text(text)
        with pytest.raises(DataError, match=words):
            self.read(tmp_path / name)

    def test_no_such_file_or_kind(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match=r"p\.csv: cannot be read \(No such file"):
            self.read(tmp_path / "p.csv")
        with pytest.raises(UsageError, match=r"must end in \.csv, \.npy, \.json"):
            self.read(tmp_path / "p.txt")

    def test_round_trip(self, tmp_path: Path) -> None:
        labels = np.random.default_rng(0).integers(0, 10, 500)
        owners = make_partition("lsmc", labels, 10, 20, 0)
        (tmp_path / "p.json").write_text(json.dumps([np.flatnonzero(owners == k).tolist() for k in range(20)]))
        again = make_partition({"name": "file", "path": str(tmp_path / "p.json")}, labels, 10, 20, 9)
        np.testing.assert_array_equal(again, owners)


def test_every_part_is_listed_with_its_meaning() -> None:
    assert set(partitions) == {"ls", "lsmc", "lqsmc", "hsu", "shards", "iid", "quantity", "natural", "file"}
    for name in partitions:
        assert partitions.entry(name).summary
        assert all(field.option.help for field in partitions.options(name).values())
