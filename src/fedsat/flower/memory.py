"""What a node stores between messages in its Flower context: the client's state and a secret. The server sees neither.

The state after a round is stored next to the previous one until the server says which of them it used. So an update
that arrived too late or was refused has no effect, as if the client had not been sampled.
"""

from __future__ import annotations

import json

from flwr.app import ConfigRecord, RecordDict

from fedsat.flower import masks
from fedsat.flower.records import pack_tree, unpack_tree
from fedsat.tree import State

SECRET, USED, NEW = "secret", "used", "new"


class Memory:
    """A node's memory of one run, stored in the records of its context."""

    def __init__(self, records: RecordDict) -> None:
        self._records = records

    def reset(self) -> None:
        """Start a run: delete everything from earlier runs and draw a new secret."""
        for name in list(self._records):
            del self._records[name]
        self._records[SECRET] = ConfigRecord({"secret": masks.new_secret()})

    @property
    def secret(self) -> bytes:
        """The node's secret for this run."""
        if SECRET not in self._records:
            self.reset()
        return bytes(self._records.config_records[SECRET]["secret"])  # type: ignore[arg-type]

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
