"""What the division of the samples suggests: a method, the number of workers, measures to watch, and what to check."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import comb
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsat.data import Summary
from fedsat.seeding import Indices

SLIGHT = 0.1
"""Up to this mean distance beyond that of a random division, skew hardly matters (docs/howto/look.md)."""
UNEVEN = 3
"""From this ratio of the largest to the smallest class on, accuracy hides the small ones."""
FEW = 50
"""With fewer test samples of a class, one sample moves its recall by more than two points."""
SURE = 0.95
"""How probable it should be that a client's workers together have every class."""
SELDOM = 0.5
"""A class that fewer rounds than this train on is pointed out."""


@dataclass(frozen=True)
class Suggestion:
    """What to do, why, and the settings that do it."""

    topic: str
    what: str
    why: str
    settings: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True, eq=False)
class Division:
    """Who holds what, and the settings that matter for it."""

    counts: Indices
    """Training samples of each client in each class [N, m]."""
    class_names: Sequence[str]
    per_round: int
    batch_size: int | None
    """None if all samples of a client are one batch."""
    test_counts: Indices | None = None
    """Test samples of each class [m]; None if there is no test set at hand."""
    partial: NDArray[np.bool_] | None = None
    """On real nodes: whether a client has samples that are not among the counts, because their classes are rare [N]."""

    @property
    def leaves_out(self) -> NDArray[np.bool_]:
        """`partial`, or no client."""
        return np.zeros(self.clients, dtype=bool) if self.partial is None else self.partial

    @property
    def unknown(self) -> NDArray[np.bool_]:
        """Whether a client may have samples of a class although it reports none [N, m]."""
        unknown: NDArray[np.bool_] = (self.counts == 0) & self.leaves_out[:, None]
        return unknown

    @property
    def clients(self) -> int:
        """N."""
        return len(self.counts)

    def classes(self, which: Sequence[int] | Indices) -> str:
        """Return the names of classes in words, the first three if there are more."""
        names = [self.class_names[label] for label in which]
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        return f"class{'es' if len(names) > 1 else ''} {', '.join(names[:3])}{more}"


def suggest(division: Division) -> list[Suggestion]:
    """Return suggestions, the most important first."""
    summary = Summary.of(division.counts)
    return [
        _method(division, summary),
        *(_workers(division) if _skewed(summary) or _uneven(summary) else ()),
        *_measures(division, summary),
        *_checks(division),
    ]


def _method(division: Division, summary: Summary) -> Suggestion:
    scale = "(0: equal, 1: disjoint)"
    distance = f"a client's class shares are on average {summary.skew:.2f} from the overall ones {scale}"
    random = f"{summary.chance:.2f} in a random division of these sizes"
    if not _skewed(summary) and not _uneven(summary):
        why = (
            f"{distance}; it would be {random}, and no class is rare: there is little that other methods could correct"
        )
        return Suggestion("method", "start with fedavg, and check that fedsat is no better", why,
                          (("methods", "fedavg,fedsat"),))  # fmt: skip
    classes = len(division.class_names)
    lacking = int(classes - summary.classes_held.median)
    lack = "report none of" if division.leaves_out.any() else "lack"
    missing = f", and half of the clients {lack} at least {lacking} of {classes} classes" if lacking else ""
    why = f"{distance}{missing}; FedAvg's clients then unlearn each other's classes"
    if not _skewed(summary):
        why = "the largest class has many times as many samples as the smallest, so FedAvg rarely predicts the smallest"
    return Suggestion("method", "compare fedsat with fedavg and scaffold", why,
                      (("methods", "fedavg,scaffold,fedsat"),))  # fmt: skip


def _skewed(summary: Summary) -> bool:
    return summary.skew - summary.chance >= SLIGHT


def _uneven(summary: Summary) -> bool:
    return summary.class_size.high >= UNEVEN * max(1.0, summary.class_size.low)


def _workers(division: Division) -> Iterator[Suggestion]:
    """Suggest how many workers FedSat's weights need."""
    nodes = 1 + division.clients - division.per_round
    if nodes == 1:
        why = (
            "every client trains in every round, so no other node is free to evaluate a client's model, and FedSat's "
            "weights depend on what clients report about their own models; fedsat-pwa leaves these weights out"
        )
        yield Suggestion("workers", "compare fedsat-pwa as well, or sample fewer clients", why,
                         (("methods", "fedavg,scaffold,fedsat,fedsat-pwa"),))  # fmt: skip
        return
    needed = workers_needed((division.counts > 0).sum(axis=0), division.clients)
    why = (
        f"{needed} random nodes together hold every class in at least {SURE:.0%} of draws; "
        "every further worker is another download"
    )
    if needed > nodes:
        why = f"{needed} nodes would be needed to hold every class in {SURE:.0%} of draws, but only {nodes} are free"
    wanted = min(needed, nodes)
    yield Suggestion("workers", f"{wanted} workers for each client", why, (("workers", wanted),))


def workers_needed(holders: Indices, clients: int) -> int:
    """Return the fewest nodes that hold every class with probability `SURE`, by the union bound over classes.

    A class that h of N clients hold is missing among w nodes with probability C(N − h, w)/C(N, w).
    """
    held = [int(number) for number in holders if number]
    for nodes in range(1, clients):
        if sum(_missing(number, clients, nodes) for number in held) <= 1 - SURE:
            return nodes
    return clients


def _missing(holders: int, clients: int, drawn: int) -> float:
    """Return the probability that none of the holders is among the nodes that are drawn."""
    return comb(clients - holders, drawn) / comb(clients, drawn)


def _measures(division: Division, summary: Summary) -> Iterator[Suggestion]:
    sizes = division.counts.sum(axis=0)
    largest, names = int(sizes.argmax()), division.class_names
    if _uneven(summary):
        two = len(names) == 2
        chosen = "auroc,average_precision,worst_class_f1" if two else "f1,worst_class_f1"
        share = sizes[largest] / sizes.sum()
        why = f"a model that always answers {names[largest]} has an accuracy of {share:.1%} and finds nothing else"
        yield Suggestion("measures", "balanced accuracy and worst-class recall, not accuracy", why,
                         (("metrics", chosen),))  # fmt: skip
    if _skewed(summary):
        why = "clients have different classes, so a mean over all samples hides clients that the model fails"
        yield Suggestion("measures", "worst-client accuracy", why)
    if division.test_counts is None:
        return
    few = np.flatnonzero(division.test_counts < FEW)
    if len(few):
        least = int(division.test_counts.min())
        step = f"one sample moves a recall by {1 / least:.0%}" if least else "a class without any has no recall"
        why = f"{division.classes(few)} {'have' if len(few) > 1 else 'has'} fewer than {FEW} test samples; {step}"
        yield Suggestion("measures", "several seeds, and the confidence intervals of a run", why, (("seeds", 3),))


def _checks(division: Division) -> Iterator[Suggestion]:
    """Point out clients and classes that may need attention."""
    holders = (division.counts > 0).sum(axis=0)
    nobody = np.flatnonzero(holders == 0)
    if len(nobody):
        why = f"no client has a sample of {division.classes(nobody)}, so no method can learn it"
        if division.unknown[:, nobody].any():
            why = f"no client reports a sample of {division.classes(nobody)}; at most, some have too few to report"
        yield Suggestion("check", "the classes, or the partition", why)
    trained = np.array([1 - _missing(int(h), division.clients, division.per_round) if h else 1.0 for h in holders])
    seldom = np.flatnonzero(trained < SELDOM)
    if len(seldom):
        why = f"{division.classes(seldom)}: only {trained.min():.0%} of the rounds train on the rarest"
        yield Suggestion("check", f"more clients per round than {division.per_round}", why)
    batch = division.batch_size
    small = int(((division.counts.sum(axis=1) < batch) & ~division.leaves_out).sum()) if batch else 0
    if small:
        why = f"{small} of {division.clients} clients have fewer samples than a batch of {batch}"
        yield Suggestion("check", "a smaller batch size, or whether these clients should take part", why)
    alone = int((((division.counts > 0).sum(axis=1) == 1) & ~division.leaves_out).sum())
    if alone:
        why = f"{alone} of {division.clients} clients have only one class, which some losses (fedlc) cannot learn from"
        yield Suggestion("check", "the method's notes at the start of a run", why)
