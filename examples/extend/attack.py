"""An attack: malicious clients relabel one class as another, which only that class's recall shows.

fedsat run --attack attack:ClassFlip --attackers 0.3 --set victim=7 --set becomes=1
"""

from dataclasses import dataclass, replace
from typing import Annotated

from fedsat.data import Federation
from fedsat.errors import UsageError
from fedsat.options import Option
from fedsat.rounds import Attack
from fedsat.seeding import Indices


@dataclass(frozen=True)
class ClassFlip(Attack):
    """Attackers train on samples of one class as if they were of another."""

    victim: Annotated[int, Option("class that attackers relabel", at_least=0)] = 0
    becomes: Annotated[int, Option("label that its samples get", at_least=0)] = 1

    def poison(self, federation: Federation, attackers: Indices) -> Federation:
        """Relabel the attackers' samples of the class."""
        dataset = federation.dataset
        if max(self.victim, self.becomes) >= dataset.classes:
            raise UsageError(f"attack.victim and attack.becomes must be below {dataset.classes}, the number of classes")
        labels = dataset.train.labels.copy()
        for client in attackers.tolist():
            held = federation.indices(client)
            labels[held[labels[held] == self.victim]] = self.becomes
        train = replace(dataset.train, labels=labels)
        return replace(federation, dataset=replace(dataset, train=train))
