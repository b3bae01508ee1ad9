"""A partition: sites of very different size, from a large hospital to many small practices.

fedsat run --partition partition:PowerLaw --set exponent=1.5
"""

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from fedsat.data import Partition
from fedsat.data.partition import apportion
from fedsat.options import Option
from fedsat.seeding import Indices


@dataclass(frozen=True)
class PowerLaw(Partition):
    """The r-th largest client has a size proportional to r^−a; labels are random."""

    exponent: Annotated[float, Option("a; 0: clients of the same size", at_least=0)] = 1.0

    def owners(self, labels: Indices, classes: int, clients: int, rng: np.random.Generator) -> Indices:
        """Give every client one sample, and the others by the power law, in random order."""
        shares = np.arange(1, clients + 1) ** -self.exponent
        sizes = 1 + apportion(len(labels) - clients, shares / shares.sum())
        return rng.permutation(np.repeat(rng.permutation(clients), sizes))
