"""The privacy ledger: what a run with differential privacy has spent, as ε for a given δ.

The unit is a client: ε and δ bound how well anyone can tell which samples one client has. All releases are Gaussian
mechanisms, added up by Rényi differential privacy with dp-accounting. What a round costs follows from the settings and
the seed alone.

- `Local`: a client is charged for every update and report that it may send. The server knows who was asked, so
  sampling hides nothing, and the ledger states the loss of the client that was asked most.
- `Central`: every round releases one noisy mean. If this mean does not reveal who was sampled, sampling amplifies the
  privacy, by the bound of Wang, Balle and Kasiviswanathan (2019) for samples of fixed size without replacement. The
  bound compares samples in which one client replaces another. So it needs equal weights, and equal numbers of steps if
  the method uses them: otherwise another client also changes the shares of all others, and the noise. It also needs a
  secret sample. Real nodes know the seed, so for them there is no amplification.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedsat.errors import UsageError
from fedsat.rounds.privacy import Central, Local, Privacy
from fedsat.rounds.sampling import sample_clients, sample_workers
from fedsat.seeding import Indices

DELTA = 1e-5
"""δ if no budget is given."""


@dataclass(frozen=True)
class Budget:
    """The privacy that a run may spend."""

    epsilon: float = math.inf
    delta: float = DELTA

    @staticmethod
    def of(text: str) -> Budget:
        """Read `ε,δ`; an empty text means no limit."""
        if not text:
            return Budget()
        try:
            epsilon, delta = (float(part) for part in text.split(","))
        except ValueError:
            raise UsageError(f"budget is {text!r}; it must be ε,δ such as 8,1e-5") from None
        if not (0 < epsilon < math.inf and 0 < delta < 1):
            raise UsageError(f"budget is {text!r}; ε must be positive and δ between 0 and 1")
        return Budget(epsilon, delta)


@dataclass(frozen=True)
class Ledger:
    """What the clients of a run spend."""

    privacy: Privacy
    clients: int
    """N, the number of clients."""
    per_round: int
    workers: int
    """Nodes that evaluate each client's model; 0 if the weighting needs none."""
    seed: int
    delta: float
    amplified: bool = False
    """Whether the noisy means do not reveal who was sampled."""

    def epsilon(self, rounds: int, repeated: int = 0) -> float:
        """Return ε after a number of rounds, in which no request was repeated more than `repeated` times in total."""
        if not rounds:
            return 0.0
        if isinstance(self.privacy, Central):
            sampled = self.per_round if self.amplified else self.clients
            return central_epsilon(self.clients, sampled, self.privacy.dp_noise, rounds, self.delta)
        assert isinstance(self.privacy, Local)
        updates, reports = self.most_charged(rounds)
        reports += repeated if self.workers else 0
        return local_epsilon(self.privacy, updates + repeated, reports, self.delta)

    def affordable(self, epsilon: float, at_most: int) -> int:
        """Return how many of `at_most` rounds cost no more than ε; costs grow with every round."""
        low, high = 0, at_most
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.epsilon(middle) <= epsilon else (low, middle - 1)
        return low

    def most_charged(self, rounds: int) -> tuple[int, int]:
        """Return the number of updates and of reports of the client that lost most."""
        assert isinstance(self.privacy, Local)
        updates, reports = self.charges(rounds)
        reports = reports + (reports > 0)  # the label histogram, once
        loss = updates / self.privacy.dp_noise**2 + reports / self.privacy.dp_counts**2
        most = int(loss.argmax())
        return int(updates[most]), int(reports[most])

    def charges(self, rounds: int) -> tuple[Indices, Indices]:
        """Return how many updates and how many reports on models every client may have sent."""
        each = [
            _asked(self.seed, number, self.clients, self.per_round, self.workers) for number in range(1, rounds + 1)
        ]
        updates, reports = zip(*each, strict=True)
        return np.sum(updates, axis=0), np.sum(reports, axis=0)


@functools.lru_cache(maxsize=4096)
def _asked(seed: int, number: int, clients: int, per_round: int, workers: int) -> tuple[Indices, Indices]:
    sampled = sample_clients(seed, number, clients, per_round)
    judges = sample_workers(seed, number, clients, sampled, workers) if workers else np.empty(0, dtype=np.int64)
    return np.bincount(sampled, minlength=clients), np.bincount(judges.ravel(), minlength=clients)


@functools.lru_cache(maxsize=4096)
def central_epsilon(clients: int, per_round: int, noise: float, rounds: int, delta: float) -> float:
    """Return ε of `rounds` noised means over samples without replacement.

    With little noise, the bound for samples can exceed the bound without sampling. Both hold, so the smaller counts.
    """
    accounting = _accounting()
    gaussian = accounting.GaussianDpEvent(noise)
    sampled = accounting.SampledWithoutReplacementDpEvent(clients, per_round, gaussian)
    return min(_spent([(event, rounds)], delta) for event in (sampled, gaussian))


def local_epsilon(privacy: Local, updates: int, reports: int, delta: float) -> float:
    """Return ε of a client that sent these numbers of updates and reports."""
    return gaussian_epsilon(((privacy.dp_noise, updates), (privacy.dp_counts, reports)), delta)


@functools.lru_cache(maxsize=4096)
def gaussian_epsilon(releases: tuple[tuple[float, int], ...], delta: float) -> float:
    """Return ε of Gaussian mechanisms, given as pairs: standard deviation by sensitivity, and how many releases."""
    accounting = _accounting()
    return _spent([(accounting.GaussianDpEvent(noise), count) for noise, count in releases], delta)


def _spent(events: list[tuple[Any, int]], delta: float) -> float:
    accounting = _accounting()
    accountant = accounting.rdp.RdpAccountant(neighboring_relation=accounting.NeighboringRelation.REPLACE_ONE)
    for event, count in events:
        if count:
            accountant.compose(event, count)
    return float(accountant.get_epsilon(delta))


def _accounting() -> Any:
    try:
        import dp_accounting  # noqa: PLC0415
    except ImportError as error:
        raise UsageError(
            "differential privacy needs dp-accounting; install it with: pip install 'fedsat[dp]'"
        ) from error
    return dp_accounting
