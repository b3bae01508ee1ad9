"""What a node has sent in all runs, as far as its privacy depends on it. It never forgets this.

A server chooses the IDs of runs, and can start as many as it likes. The account of all runs is therefore separate from
the memories of single runs, of which a node removes old ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedsat.flower.stores import Store

NAME = "account"
"""The fact under which a store has the account."""


@dataclass
class Account:
    """What the node has sent in each run; `run` is the present one."""

    run: str
    runs: dict[str, dict[str, Any]]

    @staticmethod
    @contextmanager
    def opened(run: str, locked: AbstractContextManager[Store]) -> Iterator[Account]:
        """Yield the account, and write it at the end of the block, unless that raises an error."""
        with locked as store:
            before = store.facts.get(NAME, {})
            account = Account(run, dict(before))
            yield account
            if account.runs != before:
                store.save({**store.facts, NAME: account.runs})

    @property
    def spent(self) -> dict[float, int]:
        """How many updates and reports the node has sent in this run, by noise (standard deviation by sensitivity)."""
        return _counts(self._own)

    @property
    def spent_in_all(self) -> dict[float, int]:
        """The same in all runs together."""
        total = Counter[float]()
        for own in self.runs.values():
            total.update(_counts(own))
        return dict(total)

    def spend(self, counts: Mapping[float, int]) -> None:
        """Add updates and reports, by their noise."""
        spent = self.spent
        total = {noise: spent.get(noise, 0) + counts.get(noise, 0) for noise in {**spent, **counts}}
        self._put("spent", {repr(noise): count for noise, count in total.items()})

    @property
    def labels(self) -> Tensor | None:
        """The label histogram with the noise that was drawn for it, or None if this run has none yet."""
        found = self._own.get("labels")
        return None if found is None else torch.tensor(found, dtype=torch.int64)

    @labels.setter
    def labels(self, histogram: Tensor) -> None:
        self._put("labels", histogram.tolist())

    @property
    def masked(self) -> int:
        """The last round of this run in which the node sent a masked update; 0 if there is none."""
        return int(self._own.get("masked", 0))

    @masked.setter
    def masked(self, round_number: int) -> None:
        self._put("masked", round_number)

    @property
    def _own(self) -> dict[str, Any]:
        return self.runs.get(self.run, {})

    def _put(self, name: str, value: Any) -> None:
        self.runs = {**self.runs, self.run: {**self._own, name: value}}


def _counts(own: Mapping[str, Any]) -> dict[float, int]:
    return {float(noise): int(count) for noise, count in own.get("spent", {}).items()}
