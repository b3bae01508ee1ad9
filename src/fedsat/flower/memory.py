"""What a node keeps between messages, in Flower's context: its client's state and its secret. The server sees neither.

The state that a round left is kept beside the one before it until the server says which it used: an update that came
too late or was refused has never been, as if the client had not been called.
"""

from __future__ import annotations

import json

from flwr.app import ConfigRecord, RecordDict

from fedsat.flower import masks
from fedsat.flower.records import pack_tree, unpack_tree
from fedsat.tree import State

SECRET, USED, NEW = "secret", "used", "new"


class Memory:
    """A node's memory of one run, laid into the records of its context."""

    def __init__(self, records: RecordDict) -> None:
        self._records = records

    def forget(self) -> None:
        """Begin a run: nothing of an earlier one counts."""
        for name in list(self._records):
            del self._records[name]
        self._records[SECRET] = ConfigRecord({"secret": masks.new_secret()})

    @property
    def secret(self) -> bytes:
        """The node's secret of this run."""
        if SECRET not in self._records:
            self.forget()
        return bytes(self._records.config_records[SECRET]["secret"])  # type: ignore[arg-type]

    def settle(self, used: int) -> State | None:
        """The client's state after round `used`, whose update the server used last; None if there is none."""
        state = next((self._get(slot) for slot in (NEW, USED) if self._round(slot) == used), None) if used else None
        self._drop(NEW)
        self._drop(USED)
        if state is not None:
            self._put(USED, used, state)
        return state

    def keep(self, round_number: int, state: State) -> None:
        """Keep what a round left, until the server tells whether it used it."""
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
