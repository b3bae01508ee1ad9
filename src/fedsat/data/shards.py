"""McMahan's shards: samples sorted by label, cut into pieces of equal size, and a few pieces for each client.

H. B. McMahan, E. Moore, D. Ramage, S. Hampson, B. Agüera y Arcas: Communication-efficient learning of deep networks
from decentralized data, AISTATS 2017 (arXiv:1602.05629).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from fedsat.data.partition import Partition, partitions
from fedsat.errors import UsageError
from fedsat.options import Option
from fedsat.seeding import Indices


@partitions.register("shards")
@dataclass(frozen=True)
class Shards(Partition):
    """Samples sorted by label and cut into equal shards, the same number for each client (McMahan et al. 2017)."""

    shards_per_client: Annotated[int, Option("number of shards that each client gets", at_least=1)] = 2

    def owners(self, labels: Indices, classes: int, clients: int, rng: np.random.Generator) -> Indices:  # noqa: ARG002
        """Sort, cut into N·s shards whose sizes differ by at most one, and give s random ones to each client."""
        shards = clients * self.shards_per_client
        if shards > len(labels):
            raise UsageError(
                f"{shards:,} shards (clients × shards per client) cannot each get one of {len(labels):,} samples;"
                " take fewer clients or fewer shards per client"
            )
        shuffled = rng.permutation(len(labels))
        by_label = shuffled[np.argsort(labels[shuffled], kind="stable")]
        holders = rng.permutation(np.repeat(np.arange(clients), self.shards_per_client))
        owners = np.empty(len(labels), np.int64)
        owners[by_label] = holders[np.arange(len(labels)) * shards // len(labels)]
        return owners
