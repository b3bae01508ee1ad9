"""What a node stores between messages in its Flower context, unseen by the server: the client's state, a secret, and
what it has spent of its differential privacy.

The state after a round is stored next to the previous one until the server says which of them it used. So an update
that arrived too late or was refused has no effect, as if the client had not been sampled.
"""

from __future__ import annotations

import json

import torch
from flwr.app import ConfigRecord, RecordDict
from torch import Tensor

from fedsat.flower import masks
from fedsat.flower.records import pack_tree, unpack_tree
from fedsat.tree import State

SECRET, USED, NEW, PRIVACY = "secret", "used", "new", "privacy"


class Memory:
    """A node's memory of one run, stored in the records of its context."""

    def __init__(self, records: RecordDict) -> None:
        self._records = records

    def reset(self) -> None:
        """Start a run: delete everything from earlier runs and draw a new secret.

        Flower gives every run a context of its own. What this one has spent is kept, even if the server starts again.
        """
        for name in list(self._records):
            if name != PRIVACY:
                del self._records[name]
        self._records[SECRET] = ConfigRecord({"secret": masks.new_secret()})

    @property
    def secret(self) -> bytes:
        """The node's secret for this run."""
        if SECRET not in self._records:
            self.reset()
        return bytes(self._records.config_records[SECRET]["secret"])  # type: ignore[arg-type]

    @property
    def spent(self) -> dict[float, int]:
        """How many updates and reports the node has sent, by their noise (standard deviation by sensitivity)."""
        counts = json.loads(str(self._privacy.get("spent", "{}")))
        return {float(noise): int(count) for noise, count in counts.items()}

    @spent.setter
    def spent(self, counts: dict[float, int]) -> None:
        self._privacy["spent"] = json.dumps(counts)

    @property
    def labels(self) -> Tensor | None:
        """The label histogram with the noise that was drawn for it, or None if the node has not sent it."""
        found = self._privacy.get("labels")
        return torch.tensor(found, dtype=torch.int64) if isinstance(found, list) else None

    @labels.setter
    def labels(self, histogram: Tensor) -> None:
        self._privacy["labels"] = histogram.tolist()

    @property
    def _privacy(self) -> ConfigRecord:
        if PRIVACY not in self._records:
            self._records[PRIVACY] = ConfigRecord()
        return self._records.config_records[PRIVACY]

    def load(self, used: int) -> State | None:
        """Return the client's state after round `used`, the last whose update the server used, and drop any other.

        The result is None if the server has never used an update (0), or if the node has lost the state.
        """
        state = next((self._get(slot) for slot in (NEW, USED) if self._round(slot) == used), None) if used else None
        self._drop(NEW)
        self._drop(USED)
        if state is not None:
            self._put(USED, used, state)
        return state

    def store(self, round_number: int, state: State) -> None:
        """Store the state after a round, until the server says whether it used the update."""
        self._drop(NEW)
        self._put(NEW, round_number, state)

    def _round(self, slot: str) -> int | None:
        head = self._records.config_records.get(slot)
        return None if head is None else int(head["round"])  # type: ignore[arg-type]

    def _put(self, slot: str, round_number: int, state: State) -> None:
        self._records[slot] = ConfigRecord({"round": round_number, "trees": json.dumps(list(state))})
        for name, tree in state.items():
            if tree:
                self._records[f"{slot}/{name}"] = pack_tree(tree)

    def _get(self, slot: str) -> State:
        names = json.loads(str(self._records.config_records[slot]["trees"]))
        trees = self._records.array_records
        return {name: unpack_tree(trees[f"{slot}/{name}"]) if f"{slot}/{name}" in trees else {} for name in names}

    def _drop(self, slot: str) -> None:
        for name in [name for name in self._records if name == slot or name.startswith(f"{slot}/")]:
            del self._records[name]
